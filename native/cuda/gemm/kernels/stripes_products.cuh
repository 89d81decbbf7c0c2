// What a warp of stripes.cuh does with a stage: products of its share of K by mma.sync, added to its sums.
#pragma once
#include "cuda/gemm/families/stripes.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/stripes_producer.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

constexpr int kFold = 2;  // sub-tiles of 16 k that share a reading of the scales

// c = A B
template <bool BF>
__device__ __forceinline__ void multiply_first(FragmentC<float>& c, const FragmentA<16>& a, uint32_t b0, uint32_t b1) {
  c[0] = c[1] = c[2] = c[3] = 0;
  mma_m16n8k16<BF>(c, a, b0, b1);
}

// Of a stage, what lanes of a warp read. `x`: the lane's row for ldmatrix, one tile of tokens by four eights of k, or
// two by two.
template <class Form, int T>
struct StripeOperands {
  using Tile = StripeTile<Form, T>;
  using Tokens = FragmentB<16>[T];
  const StripeArgs& g;
  const Tile& tile;
  uint32_t x, slot, side;
  int x_chunk, k, left, first_group;  // left: of k, for this warp

  __device__ __forceinline__ StripeOperands(const StripeArgs& args, const Tile& of, uint32_t stage,
                                            const ColumnWalk& at)
      : g(args), tile(of) {
    const int row = Matrix8x8::addressed_row(tile.lane), matrix = Matrix8x8::addressed(tile.lane);
    const int own_k = tile.wk * Tile::kWarpK, nt = tile.columns_of(at.strip);
    x = stage + (own_k >> 6) * Tile::kSlab + (T == 1 ? row : row + 8 * (matrix >> 1)) * 128;
    x_chunk = (own_k >> 3 & 7) + (T == 1 ? matrix : matrix & 1);
    slot = stage + tile.x_bytes + tile.warp * Tile::kSlot, side = stage + tile.x_bytes + tile.weight_bytes;
    k = at.step * tile.step_k + own_k, left = nt < tile.n_tiles ? g.k_pad - k : 0;
    first_group = at.step * tile.step_k >> g.group_shift;
  }
  __device__ __forceinline__ void fetch_codes(uint32_t (&words)[Tile::kBits], int s) const {
    Form::fetch(words, slot + s * (128 * Tile::kBits), tile.lane);
  }
  // Two tiles of tokens by 16 k, or one by 32.
  __device__ __forceinline__ void fetch_matrices(uint32_t (&r)[4], int s, int t) const {
    ldmatrix_x4(r, x + t * 1024 + (((x_chunk + 2 * s) ^ Matrix8x8::addressed_row(tile.lane)) << 4));
  }
  __device__ __forceinline__ void fetch_tokens(Tokens& to, int s) const {
#pragma unroll
    for (int t = 0; t < T; t += 2) {
      uint32_t r[4];
      fetch_matrices(r, s, t);
      to[t] = {r[0], r[1]}, to[t + 1] = {r[2], r[3]};
    }
  }
  __device__ __forceinline__ void fetch_scales(uint32_t (&raw)[Form::kRaw], uint2& zeros, int s) const {
    const int row = g.channel ? 0 : ((k + 16 * s) >> g.group_shift) - first_group;
    if (Form::kChannel && g.channel) {
#pragma unroll
      for (int i = 0; i < Form::kRaw; ++i) raw[i] = 0x3c003c00u;  // ones: the scales come at the end
    } else {
      Form::read_scales(raw, side + row * tile.scale_row + tile.wn * (kTileColumns * Tile::kScale), tile.lane);
    }
    if constexpr (Form::kZeros) {
      const uint32_t from = side + tile.rows_of_scales * tile.scale_row + row * tile.zero_row +
                            tile.wn * Tile::kZeroBytes + FragmentA<16>::row(tile.lane, 0) * Tile::kBits;
      if (Tile::kBits == 4) zeros.x = ld_shared(from);
      else zeros = ld_shared_v2(from);
    }
  }
};

// Weights with their scales in f16. While a sub-tile is multiplied, the next one's registers are on their way. Who has
// no k returns first: behind a condition, ptxas 13.0 spills the first sub-tile's registers in every step.
template <class Form, int T, bool XB>
__device__ __forceinline__ void multiply_scaled(const StripeOperands<Form, T>& from, float (&sum)[4][T][4]) {
  using Tile = StripeTile<Form, T>;
  uint32_t words[2][Tile::kBits], raw[Form::kRaw];
  FragmentB<16> x[2][T];
  uint2 zeros = make_uint2(0, 0);
  if (from.left <= 0) return;
  from.fetch_codes(words[0], 0);
  from.fetch_tokens(x[0], 0);
#pragma unroll
  for (int s = 0; s < Tile::kSub; ++s) {
    if (s > 0 && 16 * s >= from.left) break;
    if (s % kFold == 0) from.fetch_scales(raw, zeros, s);
    if (s + 1 < Tile::kSub) {
      from.fetch_codes(words[(s + 1) & 1], s + 1);
      from.fetch_tokens(x[(s + 1) & 1], s + 1);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      FragmentA<16> a;
      Form::scaled(a, words[s & 1], j, zeros, raw, from.g.magic);
#pragma unroll
      for (int t = 0; t < T; ++t) mma_m16n8k16<XB>(sum[j][t], a, x[s & 1][t][0], x[s & 1][t][1]);
    }
  }
}

// {s, t} of TurboMind's integers: sum += (t + middle s) S, S the sum of x.
template <class Form, int T, bool XB>
__device__ __forceinline__ void add_shifts(const uint32_t (&raw)[Form::kRaw], const FragmentB<16> (&x)[kFold][T],
                                           float (&sum)[4][T][4]) {
  constexpr uint32_t kOne = XB ? 0x3f803f80u : 0x3c003c00u;
  const FragmentA<16> ones{kOne, kOne, kOne, kOne};
#pragma unroll
  for (int t = 0; t < T; ++t) {
    FragmentC<float> total;
    multiply_first<XB>(total, ones, x[0][t][0], x[0][t][1]);
    mma_m16n8k16<XB>(total, ones, x[1][t][0], x[1][t][1]);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][t][i] = fmaf(Form::shift(raw, 2 * j + (i >> 1)), total[i], sum[j][t][i]);
  }
}

// Exact numbers (code - zero), two sub-tiles at a time, whose products are scaled in fp32.
template <class Form, int T, bool XB>
__device__ __forceinline__ void multiply_exact(const StripeOperands<Form, T>& from, float (&sum)[4][T][4]) {
  using Tile = StripeTile<Form, T>;
#pragma unroll
  for (int half = 0; half < Tile::kSub / kFold; ++half) {
    if (16 * kFold * half >= from.left) break;
    uint32_t words[kFold][Tile::kBits], raw[Form::kRaw];
#pragma unroll
    for (int s = 0; s < kFold; ++s) from.fetch_codes(words[s], kFold * half + s);
    FragmentB<16> x[kFold][T];
    if constexpr (T == 1) {
      uint32_t r[4];
      from.fetch_matrices(r, kFold * half, 0);
      x[0][0] = {r[0], r[1]}, x[1][0] = {r[2], r[3]};
    } else {
#pragma unroll
      for (int s = 0; s < kFold; ++s) from.fetch_tokens(x[s], kFold * half + s);
    }
    uint2 zeros = make_uint2(0, 0);
    from.fetch_scales(raw, zeros, kFold * half);
    if constexpr (Form::kFused) add_shifts<Form, T, XB>(raw, x, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const typename Form::Offset offset = Form::offset(zeros, j);
      const float scale[2] = {Form::scale(raw, 2 * j, from.g.scale_bf16 != 0),
                              Form::scale(raw, 2 * j + 1, from.g.scale_bf16 != 0)};
      FragmentA<16> a[kFold];
#pragma unroll
      for (int s = 0; s < kFold; ++s) Form::expand(a[s], words[s], j, offset, from.g.magic);
      // Four eights of tokens at a time: what more parts would hold in registers is spilled.
      constexpr int kParts = T < 4 ? T : 4;
#pragma unroll
      for (int t0 = 0; t0 < T; t0 += kParts) {
        FragmentC<float> part[kParts];
#pragma unroll
        for (int s = 0; s < kFold; ++s)
#pragma unroll
          for (int t = 0; t < kParts; ++t) {
            if (s == 0) multiply_first<XB>(part[t], a[s], x[s][t0 + t][0], x[s][t0 + t][1]);
            else mma_m16n8k16<XB>(part[t], a[s], x[s][t0 + t][0], x[s][t0 + t][1]);
          }
#pragma unroll
        for (int t = 0; t < kParts; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[j][t0 + t][i] = fmaf(scale[i >> 1], part[t][i], sum[j][t0 + t][i]);
      }
    }
  }
}

}  // namespace lpq::cuda
