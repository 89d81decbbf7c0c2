// head_linear: y[t][h] = W_h x[t][h]. A block takes 16 tokens and 64 columns of one head, and 32 terms of the sums at a
// time through shared memory, both sides in f32: (thread, reg) -> token thread / 16, column thread % 16 + 16 reg. A
// weight is read once for 16 tokens; of few tokens that is all the time the product takes.
#include "cuda/linalg/head_linear.h"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

template <class T>
__device__ __forceinline__ void head_linear(const HeadLinearArgs& a) {
  float* const inputs = reinterpret_cast<float*>(dynamic_shared());
  float* const weights = inputs + kHeadTokens * kHeadSlab;
  const int column_tile = static_cast<int>(blockIdx.x) % a.column_tiles,
            rest = static_cast<int>(blockIdx.x) / a.column_tiles, head = rest % a.heads,
            token0 = rest / a.heads * kHeadTokens, n0 = column_tile * kHeadColumns;
  const int thread = static_cast<int>(threadIdx.x), own_token = thread / 16, own_column = thread % 16;
  const T* const part = static_cast<const T*>(a.weight) + (static_cast<index_t>(head) * a.rows + a.first) * a.columns;
  const float* const x = a.x + static_cast<index_t>(head) * a.from_dim + a.from;
  float sums[4] = {0, 0, 0, 0};
  for (int k0 = 0; k0 < a.k; k0 += kHeadSlab) {
    for (int i = thread; i < kHeadTokens * kHeadSlab; i += kHeadThreads) {
      const int t = token0 + i / kHeadSlab, k = k0 + i % kHeadSlab;
      inputs[i] = t < a.tokens && k < a.k ? x[t * a.x_row + k] : 0.0f;
    }
    for (int i = thread; i < kHeadSlab * kHeadColumns; i += kHeadThreads) {
      // Neighbouring threads read neighbouring numbers of the weight.
      const int k = a.turned ? i / kHeadColumns : i % kHeadSlab, n = a.turned ? i % kHeadColumns : i / kHeadSlab;
      const bool there = k0 + k < a.k && n0 + n < a.n;
      const index_t at = a.turned ? (k0 + k) * a.columns + n0 + n : (n0 + n) * a.columns + k0 + k;
      weights[k * kHeadPitch + n] = there ? widen(part[at]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kHeadSlab; ++k) {
      const float v = inputs[own_token * kHeadSlab + k];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) sums[reg] = fmaf(v, weights[k * kHeadPitch + own_column + 16 * reg], sums[reg]);
    }
    __syncthreads();
  }
  const int t = token0 + own_token;
  if (t >= a.tokens) return;
  const index_t to = t * a.y_row + static_cast<index_t>(head) * a.to_dim + a.to;
#pragma unroll
  for (int reg = 0; reg < 4; ++reg) {
    const int n = n0 + own_column + 16 * reg;
    if (n >= a.n) continue;
    if (a.store == 0) static_cast<float*>(a.y)[to + n] = sums[reg];
    else if (a.store == 1) static_cast<f16*>(a.y)[to + n] = narrow<f16>(sums[reg]);
    else static_cast<bf16*>(a.y)[to + n] = narrow<bf16>(sums[reg]);
  }
}

}  // namespace lpq::cuda

#define LPQ_HEAD_LINEAR(type, name)                                                 \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kHeadThreads)             \
      lpq_head_linear_##name(const __grid_constant__ lpq::cuda::HeadLinearArgs a) { \
    lpq::cuda::head_linear<type>(a);                                                \
  }
LPQ_EACH_TYPE(LPQ_HEAD_LINEAR)
