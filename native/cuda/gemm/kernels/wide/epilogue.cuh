// What becomes of a warp's sums of wide.cuh.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/wide/products.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Sums leave as units of 32 rows of 8 tokens, 1024 bytes: whole items to y, of shared ones the block's part to the
// workspace.
template <int T, bool BF, class Args = GemmPackedArgs>
struct WideEpilogue {
  static constexpr int H = kWideBlocks<T>;
  const Args& g;
  const WideArgs& a;
  const uint32_t staging;
  const int lane, warp, warps;

  __device__ __forceinline__ void store_item(const float (&sum)[H][2][T][4], int item) const {
    const int token0 = item % a.token_tiles * 8 * T, block0 = item / a.token_tiles * a.width;
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const int slot = warp + h * warps;
      if (slot < a.width && block0 + slot < g.n_blocks) {
#pragma unroll
        for (int t = 0; t < T; ++t)
          store_unit(block0 + slot, token0 + 8 * t, [&](int, int p, int i) { return sum[h][p][t][i]; });
      }
    }
  }
  template <class Sums>
  __device__ __forceinline__ void store_unit(int block, int token, const Sums& sums) const {
    store_tokens<BF, 2, 1>(g, a.vectors, block * 32, token, INT_MIN, staging, lane, sums);
  }
  // Of the item that `block`'s run begins with (part 0) or ends with.
  __device__ __forceinline__ float4* part_of(int block, int part, int unit) const {
    return reinterpret_cast<float4*>(g.partial) +
           ((static_cast<long long>(block) * 2 + part) * (a.width * T) + unit) * 64 + lane;
  }
  __device__ __forceinline__ void keep_part(const float (&sum)[H][2][T][4], int part) const {
    float4* const to = part_of(static_cast<int>(blockIdx.x), part, 0);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const int slot = warp + h * warps;
      if (slot < a.width) {
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int nt = 0; nt < 2; ++nt) __stcg(to + (slot * T + t) * 64 + nt * 32, sum_vector(sum[h], nt * T + t));
      }
    }
  }
  // This block's share of an item's units.
  __device__ __forceinline__ void add_up(const EvenRuns& runs, int item, const TileSharers& sharers) const {
    const int token0 = item % a.token_tiles * 8 * T, block0 = item / a.token_tiles * a.width;
    const int units = a.width * T, rank = static_cast<int>(blockIdx.x) - sharers.from;
    const int unit_end = units * (rank + 1) / sharers.count();
    for (int unit = units * rank / sharers.count() + warp; unit < unit_end; unit += warps) {
      float v[2][1][4] = {};
#pragma unroll 4
      for (int c = sharers.from; c <= sharers.to; ++c) add_vectors(v, part_of(c, runs.part(sharers, c), unit));
      if (block0 + unit / T < g.n_blocks)
        store_unit(block0 + unit / T, token0 + 8 * (unit % T), [&](int, int p, int i) { return v[p][0][i]; });
    }
  }
};

#endif

}  // namespace lpq::cuda
