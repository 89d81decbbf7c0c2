// head_linear: how launches are cut up.
#include "cuda/linalg/head_linear.h"

#include "cuda/launch.h"
#include "ops/linalg.h"

namespace lpq::cuda {
namespace {

void head_linear(Call& call, CudaExec& exec) {
  const ops::HeadLinear of(call);
  for (const Tensor* t : {&of.x, &of.weight, &of.y})
    require(t->device == exec.device().ordinal, "a tensor is not on the device of the queue");
  if (of.x.dim(0) == 0 || of.n == 0) return;
  HeadLinearArgs a{};
  a.x = of.x.data<float>(), a.weight = of.weight.raw(), a.y = of.y.raw(), a.x_row = of.heads * of.from_dim;
  a.y_row = of.heads * of.to_dim, a.columns = of.weight.dim(1), a.tokens = static_cast<int>(of.x.dim(0));
  a.heads = static_cast<int>(of.heads), a.n = static_cast<int>(of.n), a.k = static_cast<int>(of.k);
  a.rows = static_cast<int>(of.rows), a.first = static_cast<int>(of.first);
  a.from_dim = static_cast<int>(of.from_dim), a.from = static_cast<int>(of.from);
  a.to_dim = static_cast<int>(of.to_dim), a.to = static_cast<int>(of.to), a.turned = of.turned;
  a.store = type_index(of.y.dtype), a.column_tiles = static_cast<int>(div_up(of.n, kHeadColumns));
  a.own = of.x.dim(0) <= 4 ? 1 : 4;
  const int bytes = static_cast<int>(dtype_bytes(of.weight.dtype));
  a.wide_x = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.x_row % 4 == 0 && of.from_dim % 4 == 0 && of.from % 4 == 0;
  a.wide_weight = reinterpret_cast<uintptr_t>(a.weight) % 16 == 0 && a.columns * bytes % 16 == 0;
  const int64_t blocks = div_up(of.x.dim(0), int64_t{4} * a.own) * of.heads * a.column_tiles;
  require(blocks < (int64_t{1} << 31), "tokens times heads are too many for a launch");
  exec.launch("lpq_head_linear" + suffix(of.weight), Dim3(blocks), Dim3(kHeadThreads),
              static_cast<unsigned>(head_shared(bytes)), a);
}
LPQ_CUDA_OP(head_linear, "head_linear");

}  // namespace
}  // namespace lpq::cuda
