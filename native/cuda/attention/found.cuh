// What several warps, or blocks, found of the same queries, brought together. A record is most[Q], total[Q],
// sums[Q][D]: of each query the largest score, and its sums in units of 2^most.
#pragma once
#include "cuda/gemm/stream_k.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// Of four dims of a query.
struct Found {
  float most = -INFINITY, total = 0, sum[4] = {};
  __device__ __forceinline__ void raise(float peak) {
    const float shrink = ex2_approx(most - peak);
    most = peak, total *= shrink;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] *= shrink;
  }
  // Of one in units of `share`.
  __device__ __forceinline__ void add(float share, float other_total, float4 other) {
    const float four[4] = {other.x, other.y, other.z, other.w};
    total = __fmaf_rn(other_total, share, total);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fmaf_rn(four[i], share, sum[i]);
  }
};

// Of warps' records in shared memory, `apart` floats from one to the next; `column`: the query, `at`: its four sums.
template <int Unroll, int Q>
__device__ __forceinline__ Found join_warps(const float* records, int warps, int apart, int column, int at) {
  Found found;
#pragma unroll Unroll
  for (int w = 0; w < warps; ++w) found.most = fmaxf(found.most, records[w * apart + column]);
#pragma unroll Unroll
  for (int w = 0; w < warps; ++w) {
    const float* const from = records + w * apart;
    const float share = from[column] == -INFINITY ? 0.0f : ex2_approx(from[column] - found.most);
    found.add(share, from[Q + column], *reinterpret_cast<const float4*>(from + 2 * Q + at));
  }
  return found;
}

// Of the splits' records in the workspace, Size floats each, in their order. Eight at a time: their maxima, totals and
// sums are waited for together.
template <int Size, int Q>
__device__ __forceinline__ Found join_splits(const float* all, int splits, int column, int at) {
  constexpr int kAtOnce = 8;
  Found found;
#pragma unroll 1
  for (int first = 0; first < splits; first += kAtOnce) {
    const float* const from = all + static_cast<long long>(first) * Size;
    float most[kAtOnce], total[kAtOnce], peak = found.most;
    float4 sum[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const bool there = first + r < splits;
      const float* const one = from + (there ? r * Size : 0);
      most[r] = __ldcg(one + column), total[r] = __ldcg(one + Q + column),
      sum[r] = __ldcg(reinterpret_cast<const float4*>(one + 2 * Q + at));
      if (!there) most[r] = -INFINITY;
      peak = fmaxf(peak, most[r]);
    }
    if (peak == -INFINITY) continue;
    found.raise(peak);
    // A share is 0 of those that are none, or saw nothing.
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) found.add(ex2_approx(most[r] - peak), total[r], sum[r]);
  }
  return found;
}

// Whether this block is the last of its splits to have left its record. `flag`: a word of shared memory.
__device__ __forceinline__ bool is_last_split(unsigned* counter, unsigned* flag, int splits) {
  return is_last_sharer(counter, flag, {0, splits - 1, 0}, threadIdx.x == 0, [] { __syncthreads(); });
}

}  // namespace lpq::cuda
