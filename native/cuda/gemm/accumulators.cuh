// Sums of a warp as mma and wgmma leave them: [16 rows][8 tokens][registers of FragmentC].
#pragma once
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

template <class Number, int M, int T>
__device__ __forceinline__ void clear_sums(Number (&sum)[M][T][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][t][i] = 0;
}
// Through shared memory and the workspace they go as float4s: vector v of M T.
template <int M, int T>
__device__ __forceinline__ float4 sum_vector(const float (&sum)[M][T][4], int v) {
  return make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
}
template <int M, int T>
__device__ __forceinline__ void add_vector(float (&sum)[M][T][4], int v, float4 more) {
  sum[v / T][v % T][0] += more.x, sum[v / T][v % T][1] += more.y, sum[v / T][v % T][2] += more.z,
      sum[v / T][v % T][3] += more.w;
}
// Integers travel as the bits of a float4.
template <int M, int T>
__device__ __forceinline__ float4 sum_vector(const int (&sum)[M][T][4], int v) {
  return make_float4(__int_as_float(sum[v / T][v % T][0]), __int_as_float(sum[v / T][v % T][1]),
                     __int_as_float(sum[v / T][v % T][2]), __int_as_float(sum[v / T][v % T][3]));
}
template <int M, int T>
__device__ __forceinline__ void add_vector(int (&sum)[M][T][4], int v, float4 more) {
  sum[v / T][v % T][0] += __float_as_int(more.x), sum[v / T][v % T][1] += __float_as_int(more.y),
      sum[v / T][v % T][2] += __float_as_int(more.z), sum[v / T][v % T][3] += __float_as_int(more.w);
}
__device__ __forceinline__ void add(float4& sum, float4 more) {
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}
// All of a warp's in the workspace; `to` and `from`: the lane's first.
template <int M, int T>
__device__ __forceinline__ void keep_vectors(const float (&sum)[M][T][4], float4* to) {
#pragma unroll
  for (int v = 0; v < M * T; ++v) __stcg(to + v * 32, sum_vector(sum, v));
}
template <int M, int T>
__device__ __forceinline__ void add_vectors(float (&sum)[M][T][4], const float4* from) {
#pragma unroll
  for (int v = 0; v < M * T; ++v) add_vector(sum, v, __ldcg(from + v * 32));
}

// After wgmma_wait: the asynchronous products have written `sum`.
template <class Number, int M, int T>
__device__ __forceinline__ void keep_sums(Number (&sum)[M][T][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) keep_here(sum[m][t][i]);
}

// The warps of a block that have the same tile and divide its K add up in pairs; warp 0 along K ends with the sum.
// `exchange`: [half the warps along K][warps_n][M T][32 lanes] in shared memory. sync(): of all of these warps.
template <int M, int T, class Sync>
__device__ __forceinline__ void add_up_warps(float (&sum)[M][T][4], float4* exchange, int warps_n, int warps_k, int wn,
                                             int wk, int lane, const Sync& sync) {
  for (int half = warps_k / 2; half > 0; half /= 2) {
    sync();
    if (wk >= half && wk < 2 * half) {
      float4* to = exchange + ((wk - half) * warps_n + wn) * M * T * 32 + lane;
#pragma unroll
      for (int v = 0; v < M * T; ++v) to[v * 32] = sum_vector(sum, v);
    }
    sync();
    if (wk < half) {
      const float4* from = exchange + (wk * warps_n + wn) * M * T * 32 + lane;
#pragma unroll
      for (int v = 0; v < M * T; ++v) add_vector(sum, v, from[v * 32]);
    }
  }
}

}  // namespace lpq::cuda
