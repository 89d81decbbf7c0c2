// What the calls of a cache share: their tensors, and how an operation is rehearsed, launched or computed on the host.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "cuda/hosted.h"
#include "library/context.h"
#include "library/status.h"
#include "library/threads.h"

namespace lpq::library {

using namespace lpq::cuda;

constexpr int64_t kMost = int64_t{1} << 31;

inline DType float_type(int type) { return type == LPQ_F16 ? DType::f16 : type == LPQ_BF16 ? DType::bf16 : DType::f32; }

// The tensors of a call, of a context's device or, without one, in the host's memory; `made_up`: addresses are
// nobody's, of a rehearsal.
class Operands {
 public:
  Operands(const lpq_context* context, bool made_up) : context_(context), made_up_(made_up) {}

  Tensor at(const void* address, const char* name, DType dtype, std::vector<int64_t> shape) {
    Tensor tensor = tensor_at(made_up_ ? nullptr : address, static_cast<int>(count_++), dtype, std::move(shape),
                              context_ ? context_->facts.ordinal : -1, context_);
    if (made_up_) return tensor;
    argument(address != nullptr || tensor.elements() == 0, std::string(name) + " is NULL");
    const uintptr_t unit = dtype == DType::i32 ? 4 : 16;
    argument(reinterpret_cast<uintptr_t>(address) % unit == 0,
             std::string(name) + " does not start at a multiple of " + std::to_string(unit) + " bytes");
    tensor.storage->data = static_cast<std::byte*>(const_cast<void*>(address));
    return tensor;
  }

  bool made_up() const { return made_up_; }

 private:
  const lpq_context* context_;
  bool made_up_;
  uint32_t count_ = 0;
};

inline CudaOpFn operation(const char* name) {
  const auto found = cuda_op_table().find(name);
  if (found == cuda_op_table().end()) throw Failure("LPQ_NATIVE_OP", std::string("this library has no ") + name);
  return found->second;
}

inline size_t rehearsed(lpq_context& context, const char* op, Call& call) {
  Rehearsal rehearsal;
  Hosted hosted(context.facts, context.kernels.get(), &context, rehearsal);
  operation(op)(call, hosted.exec());
  return hosted.memory_taken();
}

inline DType output_type(int type, double scale) {
  argument(type == LPQ_F16 || type == LPQ_BF16 || type == LPQ_F32, "type is not LPQ_F16, LPQ_BF16 or LPQ_F32");
  argument(scale > -1e30 && scale < 1e30, "scale is not finite");
  return float_type(type);
}

// On the host: what breaks the cache's contract is said at once.
inline void compute(const char* op, Call& call, int threads) {
  Threads taken_up(threads);
  std::atomic<int64_t> done{0}, total{0};
  Exec exec{taken_up.pool(), done, total};
  op_table().at(op)(call, exec);
}

inline void launch(lpq_context& context, const char* op, Call& call, void* workspace, size_t bytes, void* stream) {
  argument(workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % 512 == 0,
           "workspace is NULL, or does not start at a multiple of 512 bytes");
  if (bytes < kHostedHead)
    throw Failure("LPQ_WORKSPACE", "the workspace is too small: ask lpq_kv_workspace() or lpq_latent_workspace()");
  Hosted hosted(context.facts, *context.kernels, static_cast<CUstream>(stream), &context,
                static_cast<std::byte*>(workspace), bytes, false);
  operation(op)(call, hosted.exec());
}

}  // namespace lpq::library
