// The choice of kernel: what a product of packed weights launches on a device, and why. The planners stand with their
// kernels (packed.cpp, wide_plan.h, stripes.cpp); this asks them by rehearsing the operation, so that what it
// says is what runs.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/exec.h"
#include "cuda/hosted.h"
#include "lpq/exec.h"
#include "lpq/quant_type.h"

namespace lpq::cuda {

// y [M,N] = x [M,K] Wᵀ + bias, W in one of the layouts that have a kernel: tilus, marlin, turbomind.
struct Product {
  std::string layout = "tilus";
  std::string type = "u4";
  int64_t m = 1, n = 0, k = 0;
  int64_t n_padded = 0, k_padded = 0;  // as stored; 0: as `lpq pack` pads
  int64_t group = 128;                 // along K; 0: one scale a row
  DType x = DType::f16, scales = DType::f16;
  std::optional<DType> zeros;  // of groups: u8 or f16 (tilus), i32 (marlin)
  double zero = 0;             // tilus: the constant, where there are none of groups
  bool bias = false, permutation = false, experts = false;
};

// Device addresses of a product's tensors.
struct Addresses {
  const void *x = nullptr, *weights = nullptr, *scales = nullptr, *zeros = nullptr, *permutation = nullptr,
             *bias = nullptr;
  void* y = nullptr;
};

// What native/ops.ts sends as a type, for a name such as u4 or f6e3m2. Throws Failure("LPQ_NATIVE_PARAM").
Params type_params(const std::string& name);
std::string type_name(const QuantType& type);

// The operation's name and its call. Tensors belong to `owner` on `device`. Throws Failure("LPQ_NATIVE_ARGUMENT") for
// what no kernel of the layout takes.
std::pair<std::string, Call> product_call(const Product& product, const Addresses& addresses, int device,
                                          const void* owner);

struct Choice {
  std::vector<Launch> launches;      // in order
  std::vector<std::string> reasons;  // a sentence each
  Params settings;                   // of the tuned point; empty: the planners chose
  bool tuned = false;
  size_t workspace = 0;  // bytes of memory that the call takes (hosted.h)
};

struct Tuning;

// The choice. `kernels`: of the device; null: it is only described, all kernels exist unless `names` lists them, and
// clusters are taken to fit without gaps. `tuning`: settings that were timed (tuning.h), or null. Throws Failure as the
// operation does.
Choice choose_kernel(const DeviceFacts& device, Kernels* kernels, const Product& product, const Tuning* tuning,
                     const std::set<std::string>* names = nullptr);

// A device that is only described: h200, h100, a100, rtx4090 or rtx3090. Throws Failure("LPQ_CUDA_DEVICE") with the
// list.
DeviceFacts described_device(const std::string& name);

// How a launch reads in a line.
std::string launch_text(const Launch& launch);

// Runs `fn` with the point's settings, or as it is where they do not fit (or there is no point).
void run_tuned(CudaOpFn fn, Call& call, CudaExec& exec, const Tuning& tuning, const Product& product);

// Runs an operation of the table (registry.h). A product of packed weights whose call forces nothing runs with the
// settings that were timed for it, where the tuning of this device has some and they still fit.
void run_cuda_op(const std::string& op, CudaOpFn fn, Call& call, CudaExec& exec);

}  // namespace lpq::cuda
