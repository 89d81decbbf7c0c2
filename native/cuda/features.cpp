#include "cuda/features.h"

namespace lpq::cuda {
namespace {

constexpr DescribedDevice kDevices[] = {
    {"h200", "NVIDIA H200", 90, 132, 232448},
    {"h100", "NVIDIA H100", 90, 132, 232448},
    {"a100", "NVIDIA A100", 80, 108, 166912},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 101376},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 101376},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 101376},
};

struct Row {
  int arch;
  Features features;
};
// sm_90a's machine code runs on 9.0 alone; 10.0 and 12.0 have no wgmma, and PTX of compute_80 knows no griddepcontrol.
constexpr Row kFeatures[] = {
    {80, {.portable = true}},
    {90, {.portable = true, .wgmma = true, .early_launch = true}},
    {100, {.portable = true}},
    {120, {.portable = true}},
};

}  // namespace

Features features_of(int arch) {
  Features found;
  for (const Row& row : kFeatures)
    if (row.arch <= arch) found = row.features;
  return found;
}

std::string compute_capability(int arch) { return std::to_string(arch / 10) + "." + std::to_string(arch % 10); }

const DescribedDevice* described(const std::string& name) {
  for (const DescribedDevice& device : kDevices)
    if (name == device.name) return &device;
  return nullptr;
}

std::string described_names() {
  std::string names;
  const size_t count = std::size(kDevices);
  for (size_t i = 0; i < count; ++i)
    names += (i == 0 ? "" : i + 1 == count ? " and " : ", ") + std::string(kDevices[i].name);
  return names;
}

}  // namespace lpq::cuda
