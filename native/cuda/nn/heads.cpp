// copy_heads. Contract: native/ops.ts.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void copy_heads(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  auto integer = [&](const char* name) { return static_cast<int>(call.params.integer(name)); };
  const int heads = integer("heads"), width = integer("width"), from_dim = integer("fromDim"), from = integer("from");
  const int to_dim = integer("toDim"), to = integer("to"), shared = call.params.number("shared", 0) != 0;
  require(heads > 0 && width >= 0, "heads is " + std::to_string(heads) + " and width " + std::to_string(width));
  require(from >= 0 && from + width <= from_dim, "columns " + std::to_string(from) + " to " +
                                                     std::to_string(from + width) + " are not in a head of " +
                                                     std::to_string(from_dim));
  require(to >= 0 && to + width <= to_dim, "columns " + std::to_string(to) + " to " + std::to_string(to + width) +
                                               " are not in a head of " + std::to_string(to_dim));
  require_dtype(x, "x", kActivations);
  require_shape(x, "x", {-1, static_cast<int64_t>(shared ? 1 : heads) * from_dim});
  require_tensor(y, "y", x.dtype, {x.dim(0), static_cast<int64_t>(heads) * to_dim});
  const long long count = x.dim(0) * heads * static_cast<int64_t>(width);
  const void* source = x.raw();
  void* target = y.raw();
  exec.launch("lpq_copy_heads" + suffix(x), {stride_blocks(exec, count, 256)}, {256}, 0, source, target, count, heads,
              width, from_dim, from, to_dim, to, shared);
}

}  // namespace
LPQ_CUDA_OP(copy_heads, "copy_heads");
}  // namespace lpq::cuda
