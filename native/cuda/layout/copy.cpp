// copy (src/bench/ops.ts): bytes from one tensor to another on the device, as fast as its driver copies.
#include "cuda/exec.h"
#include "lpq/checks.h"

namespace lpq::cuda {
namespace {

void copy(Call& call, CudaExec& exec) {
  const Tensor &from = call.input(0), &to = call.output(0);
  require(from.bytes() == to.bytes(), "copy: the tensors have different sizes");
  exec.copy(to.raw(), from.raw(), from.bytes());
}
LPQ_CUDA_OP(copy, "copy");

}  // namespace
}  // namespace lpq::cuda
