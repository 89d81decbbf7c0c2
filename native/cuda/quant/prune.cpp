#include "cuda/launch.h"
#include "cuda/quant/number.h"
#include "ops/quant.h"

namespace lpq::cuda {
namespace {

void prune_magnitude(Call& call, CudaExec& exec) {
  const ops::PruneMagnitude op(call);
  const int64_t n = op.w.dim(0), k = op.w.dim(1), row_bytes = op.mask.dim(1);
  exec.launch("lpq_prune_magnitude", Dim3(div_up(n * row_bytes, 256)), Dim3(256), 0,
              reinterpret_cast<const uint8_t*>(op.w.raw()), number_type(op.w.dtype), static_cast<int>(n),
              static_cast<int>(k), op.pruned.data<float>(), op.mask.data<uint8_t>());
}

LPQ_CUDA_OP(prune_magnitude, "prune_magnitude");

}  // namespace
}  // namespace lpq::cuda
