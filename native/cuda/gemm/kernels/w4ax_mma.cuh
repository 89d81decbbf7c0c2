// What the kernels of W4Ax by mma.sync share: nibbles to operand A, scales of a block of k, sums to y.
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/families/w4ax_mixed.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/numbers.cuh"

namespace lpq::cuda {

// Where chunk `chunk` of 16 bytes of a token's 128 codes of 8 bits, or 4, lies in shared memory: neither the copies nor
// ldmatrix meet a bank twice.
__device__ __forceinline__ int place_of_8bit(int token, int chunk) {
  return token * 128 + ((chunk ^ (token & 7)) << 4);
}
__device__ __forceinline__ int place_of_4bit(int token, int chunk) {
  return token * 64 + ((chunk ^ (token >> 1 & 3)) << 4);
}

constexpr uint32_t kHighNibbles = 0xf0f0f0f0u;
// 16 rows by 32 of k from the two words of a lane, as 16 times the code: one LOP3 a register, and a shift for the low
// nibbles.
__device__ __forceinline__ FragmentA<8> widen_rows(uint32_t above, uint32_t below) {
  return {above << 4 & kHighNibbles, below << 4 & kHighNibbles, above & kHighNibbles, below & kHighNibbles};
}

// sum = fma(a block's exact product, scale of the token x scale of the row, sum).
__device__ __forceinline__ void add_scaled(float (&sum)[4], const FragmentC<int>& part, const float (&token_scale)[2],
                                           const float (&row_scale)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[i] = fmaf(static_cast<float>(part[i]), token_scale[i & 1] * row_scale[i >> 1], sum[i]);
}

// Registers of FragmentC to y.
__device__ __forceinline__ void store_tile(const MixedArgs& a, int row0, int token0, float4 sum, int lane) {
  using Tile = FragmentC<float>;
  const float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = row0 + Tile::row(lane, i), m = token0 + Tile::column(lane, i);
    if (n >= a.n || m >= a.m) continue;
    const float out = v[i] + (a.bias ? a.bias[n] : 0.0f);
    const long long at = static_cast<long long>(m) * a.n + n;
    if (a.store == kW4axStoreF32) static_cast<float*>(a.y)[at] = out;
    else static_cast<uint16_t*>(a.y)[at] = from_float(out, a.store == kW4axStoreBf16);
  }
}

}  // namespace lpq::cuda
