// The end of a column of tiles of sparse.cuh: sums of warps and of blocks become outputs.
#pragma once
#include "cuda/gemm/families/sparse.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/sparse_producer.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// The parts of a column that several blocks share. Whether this block was last, and has added them all up.
template <int Bits, int T, class Sync>
__device__ __forceinline__ bool fixup_last(const SparseArgs& g, const SparseTile<Bits, T>& tile, unsigned* flag,
                                           int column, float (&sum)[4][T][4], bool leader, const Sync& sync) {
  constexpr int kVectors = 4 * T, kPart = kVectors * 32;  // float4s of a warp's sums
  const FixedRuns runs{g.steps, g.per};
  const TileSharers sharers = runs.sharers(column);
  if (sharers.from == sharers.to) return true;
  const int block = static_cast<int>(blockIdx.x);
  const auto part_of = [&](int of) {
    return reinterpret_cast<float4*>(g.partial) +
           (static_cast<long long>(2 * of + runs.part(column, of)) * kPart << g.log_n) + tile.wn * kPart + tile.lane;
  };
  if (tile.wk == 0) keep_vectors(sum, part_of(block));
  if (!is_last_sharer(g.counters + column, flag, sharers, leader, sync)) return false;
  if (tile.wk != 0) return true;
  if (sharers.count() == 2) {
    // Two parts make the same sum in either order, and one it still has. Minus 0 becomes 0, as when parts are added to
    // 0.
#pragma unroll
    for (int v = 0; v < kVectors; ++v) add_vector(sum, v, make_float4(0, 0, 0, 0));
    add_vectors(sum, part_of(sharers.from + sharers.to - block));
  } else {
    clear_sums(sum);
    for (int of = sharers.from; of <= sharers.to; ++of) add_vectors(sum, part_of(of));
  }
  return true;
}

template <int T, bool BF>
__device__ __forceinline__ void store_column(const SparseArgs& g, int nt, int batch, int lane,
                                             const float (&sum)[4][T][4]) {
  using Sums = FragmentC<float>;
  const int n0 = nt * kSparseColumns + 8 * Sums::row(lane);
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int m = (batch * T + t) * 8 + Sums::column(lane, e);
      if (m >= g.m) continue;
      uint16_t out[8];
#pragma unroll
      for (int f = 0; f < 8; ++f) {  // column n0 + f: half f / 4 of product f % 4
        const int n = n0 + f;
        float v = sum[f % 4][t][2 * (f / 4) + e];
        if (n < g.n) {
          if (g.channel) v *= to_float(reinterpret_cast<const uint16_t*>(g.scales)[n], false);
          if (g.bias) v += to_float(g.bias[n], BF);
        }
        out[f] = from_float(v, BF);
      }
      uint16_t* to = g.y + static_cast<long long>(m) * g.n + n0;
      if (g.vectors && n0 + 8 <= g.n) {
        *reinterpret_cast<uint4*>(to) = make_uint4(out[0] | uint32_t{out[1]} << 16, out[2] | uint32_t{out[3]} << 16,
                                                   out[4] | uint32_t{out[5]} << 16, out[6] | uint32_t{out[7]} << 16);
      } else {
#pragma unroll
        for (int f = 0; f < 8; ++f)
          if (n0 + f < g.n) to[f] = out[f];
      }
    }
}

// A column of tiles ends, or the block's share of it: warps along K add up in pairs, blocks that share the column
// through the workspace; whoever has all of it writes y. Then the sums are 0. sync(): of the warps that multiply.
template <int Bits, int T, bool BF, class Sync>
__device__ __forceinline__ void end_column(const SparseArgs& g, const SparseTile<Bits, T>& tile, const ColumnWalk& at,
                                           float (&sum)[4][T][4], const Sync& sync) {
  unsigned char* const shared = dynamic_shared();
  add_up_warps(sum, reinterpret_cast<float4*>(shared + tile.place.exchange), 1 << g.log_n, 1 << g.log_k, tile.wn,
               tile.wk, tile.lane, sync);
  const bool whole = fixup_last(g, tile, reinterpret_cast<unsigned*>(shared + tile.place.flag), at.column, sum,
                                threadIdx.x == 0, sync);
  const int nt = tile.columns_of(at.strip);
  if (whole && tile.wk == 0 && nt * kSparseColumns < g.n) store_column<T, BF>(g, nt, at.batch, tile.lane, sum);
  clear_sums(sum);
}

}  // namespace lpq::cuda
