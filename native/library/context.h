// What the C interface's handles of a device and of a weight are.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver.h"
#include "cuda/gemm/chooser.h"
#include "cuda/gemm/family.h"
#include "cuda/gemm/tuning.h"
#include "library/layers.h"
#include "library/lpq_kernels.h"

struct lpq_context {
  lpq::cuda::CUcontext cuda = nullptr;
  lpq::cuda::DeviceFacts facts;
  std::unique_ptr<lpq::cuda::Kernels> kernels;
  lpq::cuda::Tuning tuning;
};

struct lpq_weight {
  lpq_context* context = nullptr;
  lpq::ops::GemmProduct product;  // its m is of no account
  lpq::cuda::CudaOpFn op = nullptr;
  lpq::Call call;                            // with x and y to be put in
  mutable lpq::cuda::Plans plans;            // of its calls
  std::optional<lpq::library::Layer> layer;  // instead of all these, for comet
};

namespace lpq::library {

// The context is the thread's current one for as long as this lives.
class Current {
 public:
  explicit Current(const lpq_context* context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  cuda::CUcontext before_ = nullptr;
  bool changed_ = false;
};

// Throws Failure("LPQ_NATIVE_ARGUMENT") for an address that is NULL, or no multiple of `unit`.
void require_address(const void* address, const char* name, uintptr_t unit = 16);

// Whether it is of experts whose rows stand together: experts are rows of calls, not a form of its bytes.
bool grouped(const lpq_weight& weight);
// What a product of M rows launches.
cuda::Choice choice_of(const lpq_weight& weight, int64_t m);
// The call of a product of M rows, of experts where there are `offsets`.
Call product_of_rows(const lpq_weight& weight, int64_t m, const void* x, const void* offsets, void* y);

ops::GemmProduct product_of(const lpq_weight_desc& desc);
std::unique_ptr<lpq_weight> make_weight(lpq_context* context, const lpq_weight_desc& desc);

}  // namespace lpq::library
