#include "cuda/gemm/chooser.h"

#include <algorithm>
#include <array>

#include "cuda/gemm/tensor_maps.h"
#include "ops/gemm_experts.h"
#include "ops/gemm_marlin.h"
#include "ops/gemm_packed.h"
#include "ops/gemm_sparse_marlin.h"
#include "ops/gemm_turbomind.h"

namespace lpq::cuda {
namespace {

// The layouts that have a kernel, and their operation.
struct Layout {
  const char *name, *op;
  Call (*call)(const ops::GemmProduct&, const ops::Place&);
};
constexpr std::array<Layout, 4> kLayouts{{{"tilus", "gemm_packed", ops::GemmPacked::call},
                                          {"marlin", "gemm_marlin", ops::GemmMarlin::call},
                                          {"turbomind", "gemm_turbomind", ops::GemmTurbomind::call},
                                          {"sparse_marlin", "gemm_sparse_marlin", ops::GemmSparseMarlin::call}}};

constexpr Layout kExperts{"tilus", "gemm_experts", ops::GemmExperts::call};

const Layout& layout_of(const std::string& name, int64_t experts) {
  if (experts != 0 && name == kExperts.name) return kExperts;
  for (const Layout& layout : kLayouts)
    if (name == layout.name) return layout;
  throw Failure("LPQ_NATIVE_ARGUMENT",
                "there is no kernel of the layout '" + name + "': tilus, marlin, turbomind and sparse_marlin have one");
}

}  // namespace

Tensor tensor_at(const void* address, int place, DType dtype, std::vector<int64_t> shape, int device,
                 const void* owner) {
  Tensor tensor;
  tensor.storage = std::make_shared<Storage>();
  // Beyond the scratch of a rehearsal.
  tensor.storage->data = address ? static_cast<std::byte*>(const_cast<void*>(address))
                                 : reinterpret_cast<std::byte*>(kNowhere + (uintptr_t(place + 1) << 42));
  tensor.storage->owner = owner;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.device = device;
  tensor.storage->bytes = tensor.bytes();
  return tensor;
}

std::pair<std::string, Call> product_call(const ops::GemmProduct& product, const Addresses& at, int device,
                                          const void* owner) {
  const Layout& layout = layout_of(product.layout, product.experts);
  require(product.layout == "marlin" || !product.permutation,
          "only marlin's kernel gathers activations in the order of a permutation");
  require(product.layout == "turbomind" || product.layout == kExperts.name || product.experts == 0,
          "only tilus and turbomind have a form for experts");
  require(!product.gated || (product.layout == kExperts.name && product.experts != 0),
          "gated is of experts in layout tilus alone");
  const std::pair<const char*, const void*> places[] = {{"x", at.x},
                                                        {"offsets", at.offsets},
                                                        {"weights", at.weights},
                                                        {"metadata", at.metadata},
                                                        {"scales", at.scales},
                                                        {"zeros", at.zeros},
                                                        {"permutation", at.permutation},
                                                        {"bias", at.bias},
                                                        {"y", at.y}};
  return {layout.op, layout.call(product, [&](const char* name, DType dtype, Dims shape) {
            const auto* const row = std::find_if(std::begin(places), std::end(places),
                                                 [&](const auto& each) { return std::string(each.first) == name; });
            return tensor_at(row->second, static_cast<int>(row - places), dtype, std::move(shape), device, owner);
          })};
}

DeviceFacts described_device(const std::string& name) {
  const DescribedDevice* const known = described(name);
  if (!known)
    throw Failure("LPQ_CUDA_DEVICE", "no device is described as '" + name + "': " + described_names() + " are");
  DeviceFacts facts;
  // Planners keep what they asked about a device under its number: one for each that is described, and none of a real
  // one.
  facts.ordinal = -2 - known->multiprocessors - 1000 * known->arch;
  facts.arch = known->arch, facts.features = features_of(known->arch), facts.multiprocessors = known->multiprocessors,
  facts.shared_per_block = known->shared_per_block;
  facts.name = known->title;
  return facts;
}

std::string launch_text(const Launch& l) {
  const auto dim = [](const Dim3& d) {
    std::string text = std::to_string(d.x);
    if (d.y > 1 || d.z > 1) text += "x" + std::to_string(d.y);
    if (d.z > 1) text += "x" + std::to_string(d.z);
    return text;
  };
  return l.kernel + ": " + dim(l.grid) + " blocks" +
         (l.cluster > 1 ? " in clusters of " + std::to_string(l.cluster) : "") + " of " + dim(l.block) + " threads, " +
         std::to_string(l.shared) + " bytes of shared memory";
}

Choice rehearse(const DeviceFacts& device, Kernels* kernels, const std::set<std::string>* names, const Tuning* tuning,
                const void* owner, const std::function<void(CudaExec&)>& run) {
  std::optional<NoTensorMaps> nobody;
  if (!kernels) nobody.emplace();
  Rehearsal rehearsal;
  rehearsal.names = names;
  if (!kernels)
    rehearsal.reasons.push_back(device.name + " (" + compute_capability(device.arch) + ", " +
                                std::to_string(device.multiprocessors) +
                                " multiprocessors) is a description: its clusters are taken to fit without "
                                "gaps.");
  Hosted hosted(device, kernels, owner, rehearsal);
  hosted.exec().tune(tuning);
  run(hosted.exec());
  return {std::move(rehearsal.launches), std::move(rehearsal.reasons), rehearsal.tuned, hosted.memory_taken()};
}

Choice choose_kernel(const DeviceFacts& device, Kernels* kernels, const ops::GemmProduct& product, const Tuning* tuning,
                     const std::set<std::string>* names) {
  const int owner = 0;
  auto [op, call] = product_call(product, {}, device.ordinal, &owner);
  const CudaOpFn run = cuda_op_table().at(op);
  return rehearse(device, kernels, names, tuning, &owner, [&](CudaExec& exec) { run(call, exec); });
}

}  // namespace lpq::cuda
