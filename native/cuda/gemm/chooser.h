// The choice of kernel for a product that is described, without tensors: what it launches on a device, and why. The
// operation itself is rehearsed (hosted.h), so that what is told is what runs; families (family.h) are ranked there.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/exec.h"
#include "cuda/hosted.h"
#include "ops/gemm.h"

namespace lpq::cuda {

// Device addresses of a product's tensors.
struct Addresses {
  const void *x = nullptr, *offsets = nullptr, *weights = nullptr, *metadata = nullptr, *scales = nullptr,
             *zeros = nullptr, *permutation = nullptr, *bias = nullptr;
  void* y = nullptr;
};

// A tensor of `owner` on `device`. Without an address it lies where nobody looks, `place` terabytes on.
Tensor tensor_at(const void* address, int place, DType dtype, std::vector<int64_t> shape, int device,
                 const void* owner);

// The operation's name and its call; layouts tilus (with experts gemm_experts), marlin, turbomind and sparse_marlin.
// Throws Failure("LPQ_NATIVE_ARGUMENT") for what no kernel of the layout takes.
std::pair<std::string, Call> product_call(const ops::GemmProduct& product, const Addresses& addresses, int device,
                                          const void* owner);

struct Choice {
  std::vector<Launch> launches;      // in order
  std::vector<std::string> reasons;  // a sentence each
  bool tuned = false;                // settings that were timed hold
  size_t workspace = 0;              // bytes of memory that the call takes (hosted.h)
};

// What `run` does with an executor that launches nothing. `kernels`: of the device; null: it is only described, all
// kernels exist unless `names` lists them, and clusters are taken to fit without gaps. `tuning`: settings that were
// timed (tuning.h), or null.
Choice rehearse(const DeviceFacts& device, Kernels* kernels, const std::set<std::string>* names, const Tuning* tuning,
                const void* owner, const std::function<void(CudaExec&)>& run);

// The choice for a product. Throws Failure as the operation does.
Choice choose_kernel(const DeviceFacts& device, Kernels* kernels, const ops::GemmProduct& product, const Tuning* tuning,
                     const std::set<std::string>* names = nullptr);

// A device that is only described (features.h). Throws Failure("LPQ_CUDA_DEVICE") with the list.
DeviceFacts described_device(const std::string& name);

// How a launch reads in a line.
std::string launch_text(const Launch& launch);

}  // namespace lpq::cuda
