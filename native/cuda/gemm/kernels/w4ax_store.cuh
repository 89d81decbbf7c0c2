// Where a lane's sums of a 16x8 tile of the product go: (lane, i) -> (row lane/4 + 8 (i / 2), token 2 (lane % 4) + i %
// 2).
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/families/w4ax_mixed.h"
#include "cuda/numbers.cuh"

namespace lpq::cuda {

__device__ __forceinline__ void store_four(const MixedArgs& a, int row0, int token0, const float (&v)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = row0 + (lane >> 2) + 8 * (i >> 1), m = token0 + 2 * (lane & 3) + (i & 1);
    if (n >= a.n || m >= a.m) continue;
    const float out = v[i] + (a.bias ? a.bias[n] : 0.0f);
    const long long at = static_cast<long long>(m) * a.n + n;
    if (a.store == kActStoreF32) static_cast<float*>(a.y)[at] = out;
    else static_cast<uint16_t*>(a.y)[at] = from_float(out, a.store == kActStoreBf16);
  }
}

}  // namespace lpq::cuda
