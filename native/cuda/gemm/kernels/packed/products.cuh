// What a warp of packed.cuh does with a stage: sums of activations, products of its packed block.
#pragma once
#include "cuda/gemm/activations.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

// Where this lane's row of ldmatrix lies in a slab: `fours` takes one tile of tokens by four eights of k, `pairs` two
// by two.
struct SlabRows {
  uint32_t fours_row, pairs_row;
  int fours_swizzle, pairs_swizzle;

  __device__ __forceinline__ explicit SlabRows(int lane) {
    const int row7 = lane & 7, matrix = lane >> 3;
    fours_row = row7 * 128, pairs_row = (row7 + 8 * (matrix >> 1)) * 128;
    fours_swizzle = matrix ^ row7, pairs_swizzle = (matrix & 1) ^ row7;
  }
  // In the slab at `from`, of chunk c of 32 k: both steps of 16, or step ks.
  __device__ __forceinline__ uint32_t fours(uint32_t from, int c) const {
    return from + fours_row + ((((c & 1) * 4) ^ fours_swizzle) << 4);
  }
  __device__ __forceinline__ uint32_t pairs(uint32_t from, int c, int ks) const {
    return from + pairs_row + ((((c & 1) * 4 + ks * 2) ^ pairs_swizzle) << 4);
  }
};

// S of one step, whose activations lie at `stage`: [warps_k][4 groups][8 T tokens]. Warps along N take tiles of tokens
// in turn.
template <int T, bool XB>
__device__ __forceinline__ void sum_activations(const GemmPackedArgs& g, const SlabRows& rows, uint32_t stage,
                                                float* sums, int wn, int wk, int lane) {
  constexpr int kSlab = 8 * T * 128;
  constexpr uint32_t kOne = XB ? twice(0x3f80) : twice(0x3c00);
  const uint32_t one[4] = {kOne, kOne, kOne, kOne};
  for (int t = wn; t < T; t += g.warps_n) {
    float c[4] = {0, 0, 0, 0};
    float* to = sums + wk * 4 * 8 * T + t * 8 + 2 * lane;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      uint32_t r[4];
      ldmatrix_x4(r, rows.fours(stage + (2 * wk + (chunk >> 1)) * kSlab + t * 1024, chunk));
      mma_m16n8k16<XB>(c, one, r[0], r[1]);
      mma_m16n8k16<XB>(c, one, r[2], r[3]);
      if (group_ends(g, chunk)) {
        if (lane < 4) *reinterpret_cast<float2*>(to + group_of(g, chunk) * 8 * T) = make_float2(c[0], c[1]);
        c[0] = c[1] = c[2] = c[3] = 0;
      }
    }
  }
}

// part += A B of 16 k for T tiles of tokens, both halves of the packed block's rows. Where activations are f16 and
// weights bf16 (XB != WB), activations come as two parts.
template <int T, bool XB, bool WB>
__device__ __forceinline__ void multiply_step(float (&part)[2][T][4], const uint32_t (&a)[2][4],
                                              const uint32_t (&x)[2 * T]) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    if constexpr (XB == WB) {
      mma_m16n8k16<WB>(part[0][t], a[0], x[2 * t], x[2 * t + 1]);
      mma_m16n8k16<WB>(part[1][t], a[1], x[2 * t], x[2 * t + 1]);
    } else {
      uint32_t high[2], low[2];
      split_pair<false>(x[2 * t], high[0], low[0]);
      split_pair<false>(x[2 * t + 1], high[1], low[1]);
      mma_m16n8k16<WB>(part[0][t], a[0], high[0], high[1]);
      mma_m16n8k16<WB>(part[1][t], a[1], high[0], high[1]);
      mma_m16n8k16<WB>(part[0][t], a[0], low[0], low[1]);
      mma_m16n8k16<WB>(part[1][t], a[1], low[0], low[1]);
    }
  }
}

// The packed block in `slot` times activations at `slabs`. `ones`: S of its groups, [4][8 T].
template <int B, int T, bool XB, bool WB, class Cast>
__device__ __forceinline__ void multiply_block(const GemmPackedArgs& g, const Cast& cast, const SlabRows& rows,
                                               float (&sum)[2][T][4], uint32_t slot, int scale_bytes, uint32_t slabs,
                                               const float* ones, int kb, int lane) {
  constexpr int kSlab = 8 * T * 128;
  uint32_t q[4 * B];
#pragma unroll
  for (int v = 0; v < B; ++v) load_vector<B>(q, slot + lane * 16, v);
  float part[2][T][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (group_begins(g, c)) clear_sums(part);
    uint32_t x1[4];
    if constexpr (T == 1) ldmatrix_x4(x1, rows.fours(slabs + (c >> 1) * kSlab, c));
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
      uint32_t a[2][4];
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[nt][i] = cast.pair(q + c * B, PackedChunk::pair(ks, nt, i));
      uint32_t x[2 * T];
      if constexpr (T == 1) x[0] = x1[2 * ks], x[1] = x1[2 * ks + 1];
      else {
#pragma unroll
        for (int t = 0; t < T; t += 2) {
          uint32_t r[4];
          ldmatrix_x4(r, rows.pairs(slabs + (c >> 1) * kSlab + t * 1024, c, ks));
          x[2 * t] = r[0], x[2 * t + 1] = r[1], x[2 * t + 2] = r[2], x[2 * t + 3] = r[3];
        }
      }
      multiply_step<T, XB, WB>(part, a, x);
    }
    const int group = group_of(g, c);
    // A last block may hold fewer groups than others.
    if (group_ends(g, c) && (g.channel || kb * g.groups_per_block + group < g.groups)) {
      float scale[4], zero[4];
      group_factors(g, cast, slot + 512 * B + group * 64, slot + 512 * B + scale_bytes + group * 32 * g.zero_kind, lane,
                    scale, zero);
      add_group<T, Cast::kSums>(sum, part, scale, zero, ones + group * 8 * T, lane);
    }
  }
}

}  // namespace lpq::cuda
