// gemm_act and gemm_comet: products of activations and weights that are codes of 8 bits and fewer.
#include "cuda/gemm/families/w4ax_problem.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// Of what the kernels of codes take.
void require_settings(const ops::GemmSettings& wish) {
  require(wish.stages == 0 || (wish.stages >= 2 && wish.stages <= 16), "stages is not between 2 and 16");
}

void gemm_act(Call& call, CudaExec& exec) {
  const ops::GemmAct op(call);
  require_settings(op.settings);
  require_sixteen(op.x, "x"), require_sixteen(op.w, "w");
  if (op.of_groups) require_sixteen(op.w_scales, "w_scales");
  if (op.two_level) require_sixteen(*op.group_scales, "group_scales");
  if (op.m == 0 || op.n == 0) return;
  const char* const kind = !op.packed      ? op.integers ? "i8" : "f8"
                           : op.two_level  ? "g4"
                           : !op.of_groups ? "r4"
                           : op.integers   ? "w4"
                                           : "w4f8";
  const Family<W4axProblem> families[] = {kAct8Family};
  run_families(W4axProblem{kind, op.packed, op.x, op.w, op.x_scales, op.w_scales, op.y, op.group_scales, op.bias,
                           nullptr, op.m, op.n, op.k, op.settings},
               families, exec);
}
LPQ_CUDA_OP(gemm_act, "gemm_act");

void gemm_comet(Call& call, CudaExec& exec) {
  const ops::GemmComet op(call);
  require_settings(op.settings);
  require_sixteen(op.x.x8, "x8"), require_sixteen(op.x.x4, "x4"), require_sixteen(op.x_scales, "x_scales"),
      require_sixteen(op.w, "w"), require_sixteen(op.w_scales, "w_scales");
  if (op.two_level) require_sixteen(*op.group_scales, "group_scales");
  if (op.m == 0 || op.n == 0) return;
  const Family<W4axProblem> families[] = {kW4axFewFamily, kAct8Family, kW4axMmaFamily};
  run_families(W4axProblem{op.two_level ? "g4x" : "w4x", true, op.x.x8, op.w, op.x_scales, op.w_scales, op.y,
                           op.group_scales, op.bias, &op.x, op.m, op.n, op.x.count * 128, op.settings},
               families, exec);
}
LPQ_CUDA_OP(gemm_comet, "gemm_comet");

}  // namespace
}  // namespace lpq::cuda
