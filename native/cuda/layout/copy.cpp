// copy (src/bench/ops.ts): bytes from one tensor to another on the device, as fast as its driver copies.
#include "cuda/exec.h"
#include "ops/reshape.h"

namespace lpq::cuda {
namespace {

void copy(Call& call, CudaExec& exec) {
  const auto [from, to] = ops::Copy::parse(call);
  exec.copy(to.raw(), from.raw(), from.bytes());
}
LPQ_CUDA_OP(copy, "copy");

}  // namespace
}  // namespace lpq::cuda
