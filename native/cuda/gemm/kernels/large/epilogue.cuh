// What becomes of a warp's sums of large.cuh: the fixup of tiles that blocks share, and outputs.
#pragma once
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Sums of a warp, [16 columns][8 tokens], to y: 32 columns by 8 tokens at a time through `shelf`, the
// warp's own. A token's 64 bytes stand in four pieces of 16, whose place the token turns, so that neither side meets in
// a bank.
template <int R, int W, bool BF>
__device__ __forceinline__ void store_tile(const GemmPackedArgs& g, bool vectors, const float (&sum)[R][W][4], int n0,
                                           int m0, uint32_t shelf, int lane) {
#pragma unroll
  for (int half = 0; half < R / 2; ++half) {
    if (n0 + 32 * half >= g.n) return;
    float bias[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = n0 + 32 * half + 8 * r + (lane >> 2);
      bias[r] = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
    }
#pragma unroll
    for (int t = 0; t < W; ++t) {
      __syncwarp();
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * nt + (i >> 1);
          st_shared_u16(shelf + (2 * (lane & 3) + (i & 1)) * 64 + ((r ^ (lane & 3)) << 4) + (lane >> 2) * 2,
                        from_float(sum[2 * half + nt][t][i] + bias[r], BF));
        }
      __syncwarp();
      const int row = lane >> 2, m = m0 + 8 * t + row, n = n0 + 32 * half + 8 * (lane & 3);
      const uint4 out = ld_shared_v4(shelf + row * 64 + (((lane & 3) ^ (row >> 1)) << 4));
      if (m >= g.m || n >= g.n) continue;
      uint16_t* to = g.y + static_cast<long long>(m) * g.n + n;
      if (vectors && n + 8 <= g.n) {
        *reinterpret_cast<uint4*>(to) = out;
      } else {
        const uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (n + e < g.n) to[e] = static_cast<uint16_t>(words[e / 2] >> 16 * (e & 1));
      }
    }
  }
}

// A tile that several blocks share: true for the last of them, which then has all of its sums. part_of(block): where a
// block's part is.
template <int R, int W, class Parts>
__device__ __forceinline__ bool gather_tile(float (&sum)[R][W][4], unsigned* counter, unsigned* flag,
                                            const TileSharers& sharers, const Parts& part_of) {
  keep_vectors(sum, part_of(static_cast<int>(blockIdx.x)));
  if (!is_last_sharer(counter, flag, sharers, threadIdx.x == 0, [] { __syncthreads(); })) return false;
  clear_sums(sum);
  for (int block = sharers.from; block <= sharers.to; ++block) add_vectors(sum, part_of(block));
  return true;
}

}  // namespace lpq::cuda
