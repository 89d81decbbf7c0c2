// y[m][n] = sum_k x[m][k] W[n][k] [+ bias], W in fragments of mma.m16n8k16 as MARLIN and TurboMind store them: the
// kernel that marlin.cuh and turbomind.cuh give their forms of weights and scales to. Written for sm_80 (mma.sync,
// cp.async).
//
// The fragments of a 16x16 tile of operand B (columns n) are those of operand A whose rows are n, so the weights are
// operand A here whichever way they were stored, and tokens come in eights instead of sixteens:
//   weights, tile j of a warp's 64 columns: (lane, reg, part) -> n = 16 j + row, k = column of FragmentA<16>
//   x, tile t of 8 tokens:                  (lane, reg, part) -> k = row, m = 8 t + column of FragmentB<16>
//   sums:                                   (lane, reg)       -> n = 16 j + row, m = 8 t + column of FragmentC
//
// MARLIN's mechanisms (its sections 3.3 and 3.4):
//  - weights pass through L2 with evict-first. The policy comes with the arguments: `createpolicy` inside the kernel is
//    dropped by ptxas 13 for sm_90, which leaves the copy with an undefined descriptor and the device with an illegal
//    instruction;
//  - stripes: each block owns an equal run of tiles, down a column of tiles and on into the next (`per`);
//  - fixup: a column that several blocks share is added up from the bottom block to the top one, in fp32, each waiting
//    for the one below: the bottom block began the column and is done first. MARLIN does so in fp16 in the output;
//  - a warp owns 64 columns; warps split K besides (log_k) and add up in pairs through shared memory;
//  - scales are read from shared memory once for every two sub-tiles of 16 k;
//  - more than 8 T tokens: the columns of tiles are counted `batches` times over, as if W were repeated (`batches`).
//
// Up to 16 tokens, with bf16 and with floats: codes become exact numbers (code - zero) of x's type, products are summed
// in fp32 for 32 k, and scales come in fp32, so that weights are not rounded. TurboMind's {s, t}: y = s P + (t + middle
// s) S with P the product of (code - middle), S the sum of x. More tokens of f16 and integers (Scaled): both papers'
// arithmetic, which the verifier emulates: weights fp16((code - zero) s) or fp16(code s + t), and the tensor core adds
// to the sums themselves. Scales in fp32 would take two instructions for every product and twice the registers.
#pragma once
#include "cuda/gemm/kernels/stripes_producer.cuh"
#include "cuda/gemm/kernels/stripes_products.cuh"
#include "cuda/gemm/kernels/unsigned_codes.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/numbers.cuh"

namespace lpq::cuda {

// Fixup from the bottom: adds what the block below has of the column, and leaves the sum to the one above. Whether
// there is none above, so that the sums are whole.
template <class Form, int T>
__device__ __forceinline__ bool fixup_from_below(const StripeArgs& g, const StripeTile<Form, T>& tile, int column,
                                                 float (&sum)[4][T][4]) {
  const TileSharers sharers = FixedRuns{g.steps, g.per}.sharers(column);
  const int bottom = sharers.to, rank = bottom - static_cast<int>(blockIdx.x);  // counted from the bottom
  float4* const mine = reinterpret_cast<float4*>(g.partial) +
                       static_cast<long long>((bottom << g.log_n) + tile.wn) * (4 * T * 32) + tile.lane;
  if (rank > 0) {
    if (threadIdx.x == 0) {
      wait_for_count(g.counters + bottom, static_cast<unsigned>(rank));
      if (rank + 1 == sharers.count()) g.counters[bottom] = 0;
    }
    __syncthreads();
    if (tile.wk == 0) add_vectors(sum, mine);
  }
  if (rank + 1 == sharers.count()) return true;
  if (tile.wk == 0) {
    keep_vectors(sum, mine);
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(g.counters + bottom, 1u);
  return false;
}

template <class Form, int T, bool XB>
__device__ __forceinline__ void store_column(const StripeArgs& g, const StripeTile<Form, T>& tile, int nt, int batch,
                                             const float (&sum)[4][T][4]) {
  using Sums = FragmentC<float>;
  const int token = (g.first_batch + batch) * 8 * T + Sums::column(tile.lane);
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = nt * kTileColumns + 16 * j + Sums::row(tile.lane, 2 * h);
      if (n >= g.n) continue;
      const float bias = g.bias ? to_float(g.bias[n], XB) : 0.0f;
      // Per channel: the accumulators' order, 32 columns at a time.
      const float scale = g.channel ? Form::channel_scale(g.scales, n) : 1.0f;
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int m = token + 8 * t + e;
          const float v = g.channel ? sum[j][t][2 * h + e] * scale : sum[j][t][2 * h + e];
          if (m < g.m) g.y[static_cast<long long>(m) * g.n + n] = from_float(v + bias, XB);
        }
    }
}

// Form: kBits, kScaleBytes of a column and group, kZeros (codes of zero points in `zeros`), kFused ({s, t} in a scale),
//   kChannel (knows one scale a row), kScaled (scaled(a, words, j, zeros, raw, magic): operand A in f16), and
//   fetch(words of 64 columns x 16 k, address, lane), offset(zeros, j) and expand(a, words, j, offset, magic): operand
//   A of tile j, read_scales(raw, address, lane), scale(raw, i, bf16) and shift(raw, i): of row 8 i + lane / 4 of
//   the 64.
// T: eights of tokens. XB: x, y and bias are bf16. Warps along N and K as the arguments say.
template <class Form, int T, bool XB>
__device__ __forceinline__ void gemm_stripes(const StripeArgs& g) {
  const StripeTile<Form, T> tile{g};
  unsigned char* const shared = dynamic_shared();
  const uint32_t base = shared_address(shared);
  const CopyPipeline ring{base, base + g.stages * tile.stage_bytes, tile.stage_bytes};
  float4* const exchange = reinterpret_cast<float4*>(shared + g.stages * tile.stage_bytes);

  // The block's run of tiles.
  const int first = blockIdx.x * g.per, count = max(0, min(g.per, g.strips * g.batches * g.steps - first));
  ColumnWalk walk(first, g.strips, g.steps);
  StripeProducer<Form, T> producer(g, tile, ring, walk);
  float sum[4][T][4];
  clear_sums(sum);
  for (int s = 0; s < g.stages - 1; ++s) producer.load(s < count);
  uint32_t stage = ring.begin;
  for (int at = 0; at < count; ++at) {
    ring.consumer_wait_most<2>(g.stages - 2);
    // Half of the warps of each quarter of the multiprocessor copy first and half multiply first.
    const bool more = at + g.stages - 1 < count, late = (tile.warp & 4) != 0;
    if (!late) producer.load(more);
    const StripeOperands<Form, T> operands(g, tile, stage, walk);
    if constexpr (Form::kScaled && T >= 4) multiply_scaled<Form, T, XB>(operands, sum);
    else multiply_exact<Form, T, XB>(operands, sum);
    if (late) producer.load(more);
    ring.advance(stage);

    const bool column_ends = walk.column_ends(g.steps);
    if (column_ends || at + 1 == count) {
      add_up_warps(sum, exchange, 1 << g.log_n, 1 << g.log_k, tile.wn, tile.wk, tile.lane, [] { __syncthreads(); });
      const bool whole = fixup_from_below(g, tile, walk.column, sum);
      const int nt = tile.columns_of(walk.strip);
      if (whole && tile.wk == 0 && nt < tile.n_tiles) store_column<Form, T, XB>(g, tile, nt, walk.batch, sum);
      clear_sums(sum);
    }
    if (column_ends) walk.next_column(g.strips);
  }
}

// Warps: 16 while their sums fit 128 registers.
template <int T>
constexpr int kStripeThreads = T <= 2 ? 512 : 256;

}  // namespace lpq::cuda

#define LPQ_STRIPES_T(name, form, tiles, bf)                                        \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kStripeThreads<tiles>, 1) \
      lpq_##name##_t##tiles(const __grid_constant__ lpq::cuda::StripeArgs g) {      \
    lpq::cuda::gemm_stripes<form, tiles, bf>(g);                                    \
  }
#define LPQ_STRIPES(name, form, bf) \
  LPQ_STRIPES_T(name, form, 1, bf)  \
  LPQ_STRIPES_T(name, form, 2, bf)  \
  LPQ_STRIPES_T(name, form, 4, bf)  \
  LPQ_STRIPES_T(name, form, 8, bf)
