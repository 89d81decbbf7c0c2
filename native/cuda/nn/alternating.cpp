#include "ops/alternating.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

void match_rms(Call& call, CudaExec& exec) {
  const ops::MatchRms a(call);
  const int width = static_cast<int>(a.x.dim(1));
  const float floor = static_cast<float>(a.floor);
  exec.launch("lpq_match_rms", {a.x.dim(0)}, {256}, 0, a.x.data<float>(), a.like.data<float>(), a.y.data<float>(),
              width, floor);
}

void scale_columns(Call& call, CudaExec& exec) {
  const ops::ScaleColumns a(call);
  const int width = static_cast<int>(a.x.dim(1)), type = type_index(a.scales.dtype);
  const long long count = a.x.elements();
  const void* scales = a.scales.raw();
  exec.launch("lpq_scale_columns", {stride_blocks(exec, count, 256)}, {256}, 0, a.x.data<float>(), scales, type,
              a.y.data<float>(), width, count);
}

void gaussian_top_k(Call& call, CudaExec& exec) {
  const ops::GaussianTopK a(call);
  const int width = static_cast<int>(a.x.dim(1));
  const float deviations = static_cast<float>(a.deviations);
  exec.launch("lpq_gaussian_top_k" + suffix(a.x), {a.x.dim(0)}, {256}, 0, a.x.raw(), a.y.raw(), width, deviations);
}

}  // namespace
LPQ_CUDA_OP(match_rms, "match_rms");
LPQ_CUDA_OP(scale_columns, "scale_columns");
LPQ_CUDA_OP(gaussian_top_k, "gaussian_top_k");
}  // namespace lpq::cuda
