// y[m][n] = sum_k x[m][k] (decode(q[n][k]) - zero) scale [+ bias], weights in the packed format
// (docs/internals/layouts/tilus.md), at most 8 * T tokens. The weights are operand A of mma.m16n8k16 (rows are n), the
// activations operand B, so tokens come in eights:
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh)
//   sums (lane, reg) -> (n = 16 nt + lane / 4 + 8 (reg / 2), token 8 t + 2 (lane % 4) + reg % 2) of sum[nt][t]
//
// A block owns a run of steps; a step is warps_n x warps_k blocks of 32 n x 128 k, one a warp, and steps run along K
// through a strip of 32 warps_n columns, then into the next strip: every multiprocessor streams the same number of
// bytes whatever the shape. Weights, scales and zero points reach a warp through a ring in shared memory of its own,
// activations through one of the block. Codes are multiplied as they lie (dequant.cuh); scales, offsets and zero points
// come in fp32, once a group:
//   sum_k x (gain code + offset - zero') = P - zero' S,   S = sum_k x.
// S is shared by the warps along N: each sums some tokens of the next step while this one is multiplied. This is the
// kernel of all devices but Hopper, which has its own (packed_sm90.cuh). At a strip's end the warps along K add up
// in pairs; strips that several blocks share go through `partial`, and each sharer adds up a slice of the tile in the
// order of the blocks. No sum depends on timing.
#pragma once
#include "cuda/gemm/activations.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

// A stage: activations of 64 k a slab, 128 bytes a token, chunks of 16 xor-ed with the token's number modulo 8; then
// for each warp a slot of words, scales and zero points.
template <int B, int T>
struct PackedStage {
  static constexpr int kSlab = 8 * T * 128;
  int scale_bytes, slot_bytes, x_bytes, bytes;

  __device__ __forceinline__ explicit PackedStage(const GemmPackedArgs& g) : scale_bytes(64 * g.groups_per_block) {
    const int zero_bytes = g.zero_kind == 0 ? 0 : g.zero_kind * scale_bytes / 2;
    slot_bytes = 512 * B + scale_bytes + zero_bytes;
    x_bytes = g.warps_k * 2 * kSlab;
    bytes = (x_bytes + g.warps_n * g.warps_k * slot_bytes + 1023) & ~1023;
  }
};

// What the block's threads copy, a step after the other; of words, scales and zero points each warp its own.
template <int B, int T>
struct PackedProducer {
  const GemmPackedArgs& g;
  const PackedStage<B, T>& place;
  const uint32_t ring;
  const int lane, warp, wn, wk;
  int strip, step, stage = 0;

  __device__ __forceinline__ void load(bool any) {
    if (any) {
      const uint32_t to = ring + stage * place.bytes;
      load_activations(to);
      const int nb = strip * g.warps_n + wn, kb = step * g.warps_k + wk;
      if (nb < g.n_blocks && kb < g.k_blocks) load_block(to + place.x_bytes + warp * place.slot_bytes, nb, kb);
      if (++step == g.steps) step = 0, ++strip;
      if (++stage == g.stages) stage = 0;
    }
    cp_async_commit();
  }

 private:
  __device__ __forceinline__ void load_activations(uint32_t to) const {
    constexpr int kSlab = PackedStage<B, T>::kSlab;
    const int k0 = step * g.warps_k * kBlockK;
    for (int i = threadIdx.x; i < g.warps_k * 16 * 8 * T; i += blockDim.x) {
      const int chunk = i & 15, row = (i >> 4) & (8 * T - 1), slabs = (i >> 4) / (8 * T),
                column = k0 + slabs * 128 + chunk * 8;
      const bool inside = row < g.m && column < g.k;
      cp_async_16(to + (2 * slabs + (chunk >> 3)) * kSlab + row * 128 + (((chunk & 7) ^ (row & 7)) << 4),
                  g.x + (inside ? static_cast<long long>(row) * g.k + column : 0), inside ? 16 : 0);
    }
  }
  __device__ __forceinline__ void load_block(uint32_t slot, int nb, int kb) const {
    const unsigned char* from = g.weights + (static_cast<long long>(nb) * g.k_blocks + kb) * (512 * B);
    const int group = g.channel ? 0 : kb * g.groups_per_block;
    const int groups = min(g.groups_per_block, g.groups - group);
    const long long at = (static_cast<long long>(nb) * g.groups + group) * 32;
    const uint16_t* scales = g.scales + at;
    const unsigned char* zeros = g.zeros + at * g.zero_kind;
#pragma unroll
    for (int v = 0; v < B; ++v) cp_async_16(slot + v * 512 + lane * 16, from + v * 512 + lane * 16, 16);
    if (lane < 4 * groups)
      cp_async_16(slot + 512 * B + lane * 16, reinterpret_cast<const unsigned char*>(scales) + lane * 16, 16);
    if (lane < 2 * g.zero_kind * groups)
      cp_async_16(slot + 512 * B + place.scale_bytes + lane * 16, zeros + lane * 16, 16);
  }
};

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

// XB: activations, outputs and bias are bf16, else f16. Cast: IntCast<B, WB> or FloatCast<B, WB>, WB: multiplied as
// bf16.
template <int B, int T, bool XB, bool WB, class Cast>
__device__ __forceinline__ void gemm_packed(const GemmPackedArgs& g) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int wn = warp % g.warps_n, wk = warp / g.warps_n;
  const PackedStage<B, T> place(g);
  const uint32_t ring = shared_address(shared) + 1024;
  // Sums of activations: [two steps][warps_k][4 groups][8 T tokens].
  float* const sums = reinterpret_cast<float*>(shared + 1024 + g.stages * place.bytes);
  float4* const exchange = reinterpret_cast<float4*>(sums + g.warps_k * 64 * T);
  const auto sync = [] { __syncthreads(); };

  const EvenRuns runs(g.strips, g.steps, gridDim.x);
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1), count = last - first;
  const Cast cast(g.is_signed != 0, g.exponent);
  PackedProducer<B, T> producer{g, place, ring, lane, warp, wn, wk, first / g.steps, first % g.steps};
  float sum[2][T][4];
  clear_sums(sum);
  const SlabRows rows(lane);

  for (int s = 0; s < g.stages - 1; ++s) producer.load(s < count);

  const int front = first / g.steps;
  int strip = front, step = first % g.steps, stage = 0;
  bool began_inside = step != 0;
  if (Cast::kSums) {
    cp_async_wait(g.stages - 2);
    __syncthreads();
    if (count > 0) sum_activations<T, XB>(g, rows, ring, sums, wn, wk, lane);
  }
  for (int at = 0; at < count; ++at) {
    cp_async_wait(g.stages - 3);
    __syncthreads();
    producer.load(at + g.stages - 1 < count);
    if (Cast::kSums && at + 1 < count)
      sum_activations<T, XB>(g, rows, ring + (stage + 1 == g.stages ? 0 : stage + 1) * place.bytes,
                             sums + ((at + 1) & 1) * g.warps_k * 4 * 8 * T, wn, wk, lane);

    const int nb = strip * g.warps_n + wn, kb = step * g.warps_k + wk;
    if (nb < g.n_blocks && kb < g.k_blocks) {
      const uint32_t x_stage = ring + stage * place.bytes;
      multiply_block<B, T, XB, WB>(g, cast, rows, sum, x_stage + place.x_bytes + warp * place.slot_bytes,
                                   place.scale_bytes, x_stage + 2 * wk * PackedStage<B, T>::kSlab,
                                   sums + ((at & 1) * g.warps_k + wk) * 4 * 8 * T, kb, lane);
    }
    if (++stage == g.stages) stage = 0;

    const bool strip_ends = ++step == g.steps;
    if (strip_ends || at + 1 == count)
      end_strip<T, XB>(g, sum, exchange, strip, strip == front, strip_ends && !began_inside, wn, wk, lane, sync);
    if (strip_ends) step = 0, ++strip, began_inside = false;
  }

  finish_shared<T, XB>(g, runs, first, last, threadIdx.x, blockDim.x, sync);
}

}  // namespace lpq::cuda

// What the casts make of chunks: q [chunks, bits] words -> pairs [chunks, 16]. For tests.
#define LPQ_CAST_PAIRS(name, bits, cast)                                                                    \
  extern "C" __global__ void lpq_cast_##name(const uint32_t* q, uint32_t* pairs, int chunks, int is_signed, \
                                             int exponent) {                                                \
    const lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16> cast_(is_signed != 0, exponent);                          \
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < chunks; c += gridDim.x * blockDim.x) {          \
      uint32_t words[bits];                                                                                 \
      for (int w = 0; w < bits; ++w) words[w] = q[c * bits + w];                                            \
      _Pragma("unroll") for (int i = 0; i < 16; ++i) pairs[c * 16 + i] = cast_.pair(words, i);              \
    }                                                                                                       \
  }

// Blocks of up to 512 threads where 128 registers do.
#define LPQ_GEMM_PACKED(name, tiles, threads, bits, xb, cast)                                              \
  extern "C" __global__ void __launch_bounds__(threads, 1)                                                 \
      lpq_gemm_##name##_t##tiles(const lpq::cuda::GemmPackedArgs g) {                                      \
    lpq::cuda::gemm_packed<bits, tiles, xb, LPQ_WEIGHTS_BF16, lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16>>(g); \
  }
// Of what Hopper has kernels for: built for sm_90a alone, these would never run.
#if LPQ_PORTABLE_RUNS
#define LPQ_GEMM_PORTABLE LPQ_GEMM_PACKED
#else
#define LPQ_GEMM_PORTABLE(name, tiles, threads, bits, xb, cast)
#endif
