// Scores that are sums over a part of a head's dims, brought together by the two that take a part each, by way of
// shared memory: one hands over its own, waits, and adds those of the other. Both then have the same, to the bit.
#pragma once
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// score(i) are four numbers, i below COUNT; a lane has `apart` bytes from one four to the next.
template <int COUNT, class Score>
__device__ __forceinline__ void hand_scores(uint32_t to, int apart, const Score& score) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float (&own)[4] = score(i);
    st_shared_v4(to + static_cast<uint32_t>(i * apart), make_uint4(__float_as_uint(own[0]), __float_as_uint(own[1]),
                                                                   __float_as_uint(own[2]), __float_as_uint(own[3])));
  }
}
template <int COUNT, class Score>
__device__ __forceinline__ void add_scores(uint32_t from, int apart, const Score& score) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float4 other = ld_shared_f4(from + static_cast<uint32_t>(i * apart));
    float (&own)[4] = score(i);
    own[0] += other.x, own[1] += other.y, own[2] += other.z, own[3] += other.w;
  }
}

}  // namespace lpq::cuda
