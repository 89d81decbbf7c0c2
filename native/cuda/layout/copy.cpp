// copy (src/bench/ops.ts): bytes from one tensor to another on the device, as fast as its driver copies.
#include "cuda/exec.h"
#include "ops/reshape.h"

namespace lpq::cuda {
namespace {

void copy(Call& call, CudaExec& exec) {
  const ops::Copy op(call);
  exec.copy(op.to.raw(), op.from.raw(), op.from.bytes());
}
LPQ_CUDA_OP(copy, "copy");

}  // namespace
}  // namespace lpq::cuda
