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
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/packed/producer.cuh"
#include "cuda/gemm/kernels/packed/products.cuh"

namespace lpq::cuda {

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
