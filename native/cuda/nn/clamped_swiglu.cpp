// clamped_swiglu. Contract: native/ops.ts.
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void clamped_swiglu(Call& call, CudaExec& exec) {
  const Tensor &gate = call.input(0), &up = call.input(1), &y = call.output(0);
  require_dtype(gate, "gate", kActivations);
  require_tensor(up, "up", gate.dtype, gate.shape);
  require_tensor(y, "y", gate.dtype, gate.shape);
  const float alpha = static_cast<float>(call.params.number("alpha")),
              limit = static_cast<float>(call.params.number("limit"));
  require(alpha > 0, "alpha is " + std::to_string(alpha) + ", not positive");
  require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
  const long long count = gate.elements();
  const void *g = gate.raw(), *u = up.raw();
  void* out = y.raw();
  exec.launch("lpq_clamped_swiglu" + suffix(gate), {stride_blocks(exec, count, 256)}, {256}, 0, g, u, out, alpha, limit,
              count);
}

}  // namespace
LPQ_CUDA_OP(clamped_swiglu, "clamped_swiglu");
}  // namespace lpq::cuda
