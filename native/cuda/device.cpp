#include "cuda/device.h"

namespace lpq::cuda {
namespace {

int attribute(int which, CUdevice device) {
  int value = 0;
  check(driver().device_attribute(&value, which, device), "asking about the device");
  return value;
}

}  // namespace

DeviceFacts device_facts(int ordinal) {
  CUdevice device = 0;
  check(driver().device_get(&device, ordinal), "opening cuda:" + std::to_string(ordinal));
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.arch = 10 * attribute(kComputeMajor, device) + attribute(kComputeMinor, device);
  facts.features = features_of(facts.arch);
  facts.multiprocessors = attribute(kMultiprocessors, device);
  facts.shared_per_block = attribute(kMaxSharedPerBlockOptin, device);
  facts.l2_bytes = static_cast<size_t>(attribute(kL2Bytes, device));
  check(driver().device_memory(&facts.memory_bytes, device), "asking about the device");
  char name[256] = {};
  check(driver().device_name(name, sizeof(name), device), "asking about the device");
  facts.name = name;
  return facts;
}

}  // namespace lpq::cuda
