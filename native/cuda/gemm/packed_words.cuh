// The words of a packed block as a warp finds them in shared memory: B vectors of 512 bytes, 16 bytes a lane; a lane's
// 4 B words are its four chunks of 32 k, B words each (docs/internals/layouts/tilus.md). `words`: where the lane's
// first vector lies.
#pragma once
#include "cuda/gemm/fragment.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Of a chunk, 32 rows by 32 k: (lane, pair) -> (n, k and the next), pairs numbered as casts make them.
struct PackedChunk {
  __host__ __device__ static constexpr int n(int lane, int pair) { return 8 * (pair & 3) + (lane >> 2); }
  __host__ __device__ static constexpr int k(int lane, int pair) { return 8 * (pair >> 2) + 2 * (lane & 3); }
  // The pair that is register `reg` of operand A for 16 k, step ks, and 16 rows, half nt.
  __host__ __device__ static constexpr int pair(int ks, int nt, int reg) {
    return 4 * (2 * ks + (reg >> 1)) + 2 * nt + (reg & 1);
  }
  static constexpr bool is_operand_a() {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 16; ++i) {
        const int ks = i >> 3, nt = i >> 2 & 1, reg = i & 3, at = pair(ks, nt, reg);
        if (n(lane, at) != 16 * nt + FragmentA<16>::row(lane, reg)) return false;
        if (k(lane, at) != 16 * ks + FragmentA<16>::column(lane, reg)) return false;
      }
    return true;
  }
};
static_assert(PackedChunk::is_operand_a());

template <int B>
__device__ __forceinline__ void load_vector(uint32_t (&q)[4 * B], uint32_t words, int v) {
  ld_shared_v4(q + 4 * v, words + v * 512);
}
// The vectors that chunk c + 1 is the first to need (and, to begin with, chunk 0).
template <int B>
__device__ __forceinline__ void load_ahead(uint32_t (&q)[4 * B], uint32_t words, int c) {
#pragma unroll
  for (int v = 0; v < B; ++v)
    if (v >= (c == 0 ? 0 : ((c + 1) * B + 3) / 4) && v < ((c + 2) * B + 3) / 4) load_vector<B>(q, words, v);
}

}  // namespace lpq::cuda
