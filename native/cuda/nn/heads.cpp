#include "cuda/launch.h"
#include "ops/reshape.h"

namespace lpq::cuda {
namespace {

void copy_heads(Call& call, CudaExec& exec) {
  const ops::CopyHeads a(call);
  const Tensor &x = a.x, &y = a.y;
  require_dtype(x, "x", kActivations);
  const int heads = static_cast<int>(a.heads), width = static_cast<int>(a.width), shared = a.shared;
  const int from_dim = static_cast<int>(a.from_dim), from = static_cast<int>(a.from);
  const int to_dim = static_cast<int>(a.to_dim), to = static_cast<int>(a.to);
  const long long count = x.dim(0) * heads * static_cast<int64_t>(width);
  exec.launch("lpq_copy_heads" + suffix(x), {stride_blocks(exec, count, 256)}, {256}, 0, x.raw(), y.raw(), count, heads,
              width, from_dim, from, to_dim, to, shared);
}

}  // namespace
LPQ_CUDA_OP(copy_heads, "copy_heads");
}  // namespace lpq::cuda
