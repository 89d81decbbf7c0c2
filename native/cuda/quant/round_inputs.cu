// Inputs rounded to a type of few bits, times scales: the bytes of cpu/quant/round_inputs.cpp.
#include "cuda/quant/choice.cuh"
#include "cuda/quant/round_inputs.h"

namespace lpq::cuda {
namespace {

// Least and greatest of a team's numbers, in every lane of it.
struct Ends {
  int32_t low = 0x7fffffff, high = static_cast<int32_t>(0x80000000u);
  bool finite = true;

  __device__ void add(float x) {
    const int32_t key = key_of(x);
    low = ::min(low, key), high = ::max(high, key);
    finite = finite && isfinite(x);
  }
  __device__ void join(int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      low = ::min(low, __shfl_xor_sync(~0u, low, mask));
      high = ::max(high, __shfl_xor_sync(~0u, high, mask));
    }
  }
  __device__ static float of(int32_t key) { return __int_as_float(key ^ ((key >> 31) & 0x7fffffff)); }
};

template <bool kFloat>
__device__ void round_groups(const RoundInputsArgs& a) {
  const DeviceGrid<kFloat> grid(a.rule.grid);
  const int lanes = a.team > 0 ? a.team : 32, lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t each = static_cast<int64_t>(gridDim.x) * blockDim.x / lanes;
  const int64_t own = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / lanes;
  bool finite = true;
  // Lanes of a warp stay together: those whose team has no group left look at the last one and write nothing.
  for (int64_t turn = own - own % (32 / lanes); turn < a.groups; turn += each) {
    const int64_t mine = turn + own % (32 / lanes), g = ::min(mine, a.groups - 1);
    const float* from = a.x + g * a.length;
    float* to = a.y + g * a.length;
    Ends ends;
    float4 held{};
    if (a.team > 0) {
      held = reinterpret_cast<const float4*>(from)[lane];
      ends.add(held.x), ends.add(held.y), ends.add(held.z), ends.add(held.w);
    } else {
      for (int i = lane; i < a.length; i += 32) ends.add(from[i]);
    }
    ends.join(lanes);
    finite = finite && ends.finite;
    const Choice c = choose(a.rule, Ends::of(ends.low), Ends::of(ends.high), a.global);
    const GridStep step = grid.step(c.codes, 0.0f);
    if (mine != g) continue;
    if (a.team > 0) {
      reinterpret_cast<float4*>(to)[lane] =
          make_float4(grid.nearest(held.x, step) * c.codes, grid.nearest(held.y, step) * c.codes,
                      grid.nearest(held.z, step) * c.codes, grid.nearest(held.w, step) * c.codes);
    } else {
      for (int i = lane; i < a.length; i += 32) to[i] = grid.nearest(from[i], step) * c.codes;
    }
  }
  if (!finite) *a.fault = 1;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) lpq_round_inputs(RoundInputsArgs a) {
  if (a.rule.grid.is_float) round_groups<true>(a);
  else round_groups<false>(a);
}

}  // namespace lpq::cuda
