#include "cuda/launch.h"
#include "ops/elementwise.h"

namespace lpq::cuda {
namespace {

void clamped_swiglu(Call& call, CudaExec& exec) {
  const ops::ClampedSwiglu a = ops::ClampedSwiglu::parse(call);
  const long long count = a.gate.elements();
  const void *g = a.gate.raw(), *u = a.up.raw();
  void* out = a.y.raw();
  exec.launch("lpq_clamped_swiglu" + suffix(a.gate), {stride_blocks(exec, count, 256)}, {256}, 0, g, u, out, a.alpha,
              a.limit, count);
}

}  // namespace
LPQ_CUDA_OP(clamped_swiglu, "clamped_swiglu");
}  // namespace lpq::cuda
