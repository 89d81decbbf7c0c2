// The exact tail of a cache, the sums over all that blocks found, and packing: the parts of decode attention that are small.
#pragma once
#include "cuda/attention/kv_shape.h"
#ifdef LPQ_SIMT
#include LPQ_SIMT
#else
#include "cuda/attention/kv_ptx.cuh"
#endif

namespace lpq::cuda {

constexpr int kTailThreads = 256;

// One block a tile of 8 queries of a kv head of a sequence: scores of all tokens in shared memory (8 floats a token), a softmax,
// and the products with values; its record is the last of the tile's.
template <int DIMS>
__device__ __forceinline__ void kv_tail(const KvTailArgs& a) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int index = static_cast<int>(blockIdx.x), tile = index % a.query_tiles, head = index / a.query_tiles % a.kv_heads,
            sequence = index / a.query_tiles / a.kv_heads, group = a.heads / a.kv_heads, tokens = a.tails[sequence];
  const long long row = static_cast<long long>(a.kv_heads) * DIMS, first = static_cast<long long>(sequence) * a.room * row + static_cast<long long>(head) * DIMS;
  float* const scores = reinterpret_cast<float*>(attention_shared());  // [tokens][8], then halves of the sums [2][8][DIMS]
  float* const sums = scores + kKvQueries * a.room;
  constexpr int L = DIMS / 32;
  float q[kKvQueries][L];
#pragma unroll
  for (int i = 0; i < kKvQueries; ++i)
#pragma unroll
    for (int l = 0; l < L; ++l) {
      const int own = tile * kKvQueries + i;
      q[i][l] = own < group ? half_of(a.q[(static_cast<long long>(sequence) * a.heads + head * group + own) * DIMS + lane + 32 * l]) : 0.0f;
    }
  for (int t = warp; t < tokens; t += kTailThreads / 32) {
    float k[L];
#pragma unroll
    for (int l = 0; l < L; ++l) k[l] = half_of(a.keys[first + t * row + lane + 32 * l]);
#pragma unroll
    for (int i = 0; i < kKvQueries; ++i) {
      float sum = 0;
#pragma unroll
      for (int l = 0; l < L; ++l) sum = fused(q[i][l], k[l], sum);
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
      if (lane == i) scores[t * kKvQueries + i] = sum * a.scale;
    }
  }
  __syncthreads();
  float* const to = a.partial + (static_cast<long long>(index) * a.records + a.records - 1) * kKvRecord<DIMS>;
  {  // eight warps, a query each
    float most = -INFINITY, total = 0;
    for (int t = lane; t < tokens; t += 32) most = fmaxf(most, scores[t * kKvQueries + warp]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    for (int t = lane; t < tokens; t += 32) {
      const float p = power_of_two(scores[t * kKvQueries + warp] - most);
      scores[t * kKvQueries + warp] = p, total += p;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(0xffffffffu, total, mask);
    if (lane == 0) to[warp] = most, to[kKvQueries + warp] = total;
  }
  __syncthreads();
  // Threads over dims; those left over share out the tokens.
  constexpr int parts = kTailThreads / DIMS < 1 ? 1 : kTailThreads / DIMS;
  const int d = thread % DIMS, part = thread / DIMS;
  float out[kKvQueries] = {};
  for (int t = part; t < tokens; t += parts) {
    const float v = half_of(a.values[first + t * row + d]);
#pragma unroll
    for (int i = 0; i < kKvQueries; ++i) out[i] = fused(scores[t * kKvQueries + i], v, out[i]);
  }
#pragma unroll
  for (int i = 0; i < kKvQueries; ++i) sums[(part * kKvQueries + i) * DIMS + d] = out[i];
  __syncthreads();
  for (int i = thread; i < kKvQueries * DIMS; i += kTailThreads) {
    float sum = sums[i];
    for (int p = 1; p < parts; ++p) sum += sums[p * kKvQueries * DIMS + i];
    to[2 * kKvQueries + i] = sum;
  }
}

// One block a query head of a sequence, a thread a dim: y = the sums of all records that hold tokens; 0 where none does.
template <int DIMS>
__device__ __forceinline__ void kv_combine(const KvCombineArgs& a) {
  const int d = static_cast<int>(threadIdx.x), query = static_cast<int>(blockIdx.x) % a.heads, sequence = static_cast<int>(blockIdx.x) / a.heads;
  const int group = a.heads / a.kv_heads, head = query / group, own = query % group, column = own % kKvQueries;
  const float* records = a.partial + ((static_cast<long long>(sequence) * a.kv_heads + head) * a.query_tiles + own / kKvQueries) * a.records * kKvRecord<DIMS>;
  float most = -INFINITY, total = 0, sum = 0;
  for (int r = 0; r < a.records; ++r) most = fmaxf(most, records[static_cast<long long>(r) * kKvRecord<DIMS> + column]);
  for (int r = 0; r < a.records; ++r) {
    const float* from = records + static_cast<long long>(r) * kKvRecord<DIMS>;
    const float share = from[column] == -INFINITY ? 0.0f : power_of_two(from[column] - most);
    total = fused(from[kKvQueries + column], share, total);
    sum = fused(from[2 * kKvQueries + column * DIMS + d], share, sum);
  }
  const float y = total > 0 ? quotient(sum, total) : 0.0f;
  const long long at = static_cast<long long>(blockIdx.x) * DIMS + d;
  if (a.wide) static_cast<float*>(a.y)[at] = y;
  else static_cast<unsigned short*>(a.y)[at] = half_bits(y);
}

#define LPQ_KV_SMALL(dims)                                                                                                          \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kTailThreads) lpq_kv_tail_##dims(const __grid_constant__ lpq::cuda::KvTailArgs a) { \
    lpq::cuda::kv_tail<dims>(a);                                                                                                    \
  }                                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(dims) lpq_kv_combine_##dims(const __grid_constant__ lpq::cuda::KvCombineArgs a) {    \
    lpq::cuda::kv_combine<dims>(a);                                                                                                 \
  }

}  // namespace lpq::cuda
