// two_level_scales and group_energy: the CPU's bytes.
#include "lpq/two_level.h"
#include "cuda/exec.h"
#include "cuda/quant/number.h"
#include "ops/quant.h"

namespace lpq::cuda {
namespace {

void two_level_scales(Call& call, CudaExec& exec) {
  const ops::TwoLevelScales a(call);
  const int64_t n = a.scale.dim(0);
  if (a.scale.elements() == 0) return;
  exec.launch("lpq_two_level_scales", Dim3(n), Dim3(256), 0, static_cast<const float*>(a.energy.data<float>()),
              a.scale.dim(1), a.dtype == DType::f16 ? TwoLevel::f16() : TwoLevel::f32(), a.scale.data<float>());
}

void group_energy(Call& call, CudaExec& exec) {
  const ops::GroupEnergy a(call);
  if (a.energy.elements() == 0) return;
  const float* m = a.m ? a.m->data<float>() : nullptr;
  exec.launch("lpq_group_energy", Dim3(a.w.dim(0)), Dim3(256), 0, reinterpret_cast<const uint8_t*>(a.w.raw()),
              number_type(a.w.dtype), a.w.dim(1), static_cast<const int32_t*>(a.group.data<int32_t>()), m,
              a.energy.dim(1), a.energy.data<float>(),
              exec.fault("LPQ_NATIVE_ARGUMENT", "group holds an index outside the energies"));
}

LPQ_CUDA_OP(two_level_scales, "two_level_scales");
LPQ_CUDA_OP(group_energy, "group_energy");

}  // namespace
}  // namespace lpq::cuda
