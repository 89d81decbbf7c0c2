#include "cuda/launch.h"
#include "ops/elementwise.h"

namespace lpq::cuda {
namespace {

void clamped_swiglu(Call& call, CudaExec& exec) {
  const ops::ClampedSwiglu a(call);
  const long long count = a.gate.elements();
  const void *g = a.gate.raw(), *u = a.up.raw();
  exec.launch("lpq_clamped_swiglu" + suffix(a.gate), {stride_blocks(exec, count, 256)}, {256}, 0, g, u, a.y.raw(),
              a.alpha, a.limit, count);
}

}  // namespace
LPQ_CUDA_OP(clamped_swiglu, "clamped_swiglu");
}  // namespace lpq::cuda
