// The words of a packed block as a warp finds them in shared memory: B vectors of 512 bytes, 16 bytes a lane; a lane's
// 4 B words are its four chunks of 32 k, B words each (docs/kernels.md). `words`: where the lane's first vector lies.
#pragma once
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

template <int B>
__device__ __forceinline__ void load_vector(uint32_t (&q)[4 * B], uint32_t words, int v) {
  const uint4 four = ld_shared_v4(words + v * 512);
  q[4 * v] = four.x, q[4 * v + 1] = four.y, q[4 * v + 2] = four.z, q[4 * v + 3] = four.w;
}
// The vectors that chunk c + 1 is the first to need (and, to begin with, chunk 0).
template <int B>
__device__ __forceinline__ void load_ahead(uint32_t (&q)[4 * B], uint32_t words, int c) {
#pragma unroll
  for (int v = 0; v < B; ++v)
    if (v >= (c == 0 ? 0 : ((c + 1) * B + 3) / 4) && v < ((c + 2) * B + 3) / 4) load_vector<B>(q, words, v);
}

}  // namespace lpq::cuda
