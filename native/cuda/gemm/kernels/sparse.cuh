// y[m][n] = sum_k x[m][k] W[n][k] [+ bias], W 2:4 sparse along k in Sparse-MARLIN's bytes
// (docs/internals/layouts/sparse-marlin.md), as they are: the weight is operand A of mma.sp.m16n8k32, tokens are
// columns in eights. Written for sm_80 (mma.sp, cp.async).
//
// A warp owns 64 columns: four products of 16 rows, of which row r of product j is column 8 (r % 8) + 4 (r / 8) + j. So
// a lane ends with eight neighbouring outputs of each of its tokens, which leave as one store of 16 bytes:
//   weights:  (lane, reg, part)     -> r and the kept k of FragmentA<16>, n = 8 (lane / 4) + 4 (reg % 2) + j
//   metadata: word j / 2 of a lane  -> FragmentMetadata<j % 2> of product j
//   x:        (lane, reg, part)     -> k = row, m = 8 t + column of FragmentB<16, 4>
//   sums:     (lane, reg)           -> n = 8 (lane / 4) + 4 (reg / 2) + j, m = 8 t + column of FragmentC
// A step is 128 k, a group: 512 bytes of codes a bit, 1 KiB of metadata and 128 bytes of scales, which each warp copies
// for itself into the pipeline's stage; the activations are the block's.
//
// Stream-K: each block owns an equal run of tiles down a column of tiles and on into the next (MARLIN's stripes).
// Whoever is last with a column that several blocks share adds all parts up in fp32 in the order of K: nobody waits,
// and no sum depends on timing.
//
// Up to 32 tokens, and with bf16: code - 2^(bits-1) is exact in the type of x, and the scale comes in fp32. More tokens
// of f16: the paper's arithmetic, which the verifier emulates, weights f16((code - 2^(bits-1)) s): scales in fp32 would
// take twice the registers.
#pragma once
#include "cuda/gemm/kernels/sparse_epilogue.cuh"
#include "cuda/gemm/kernels/sparse_producer.cuh"
#include "cuda/gemm/kernels/sparse_products.cuh"

namespace lpq::cuda {

// T: eights of tokens. BF: x, y and bias are bf16.
template <int Bits, int T, bool BF>
__device__ __forceinline__ void gemm_sparse(const SparseArgs& g) {
  using Tile = SparseTile<Bits, T>;
  const Tile tile{g};
  const uint32_t base = shared_address(dynamic_shared());
  const CopyPipeline ring{base, base + tile.place.exchange, tile.place.stage};
  const int first = blockIdx.x * g.per, count = max(0, min(g.per, g.strips * g.batches * g.steps - first));
  ColumnWalk walk(first, g.strips, g.steps);
  SparseProducer<Bits, T> producer(g, tile, ring, walk);
  float sum[4][T][4];
  clear_sums(sum);
  for (int s = 0; s < g.stages - 1; ++s) producer.load(s < count);
  uint32_t stage = ring.begin;
  for (int at = 0; at < count; ++at) {
    ring.consumer_wait_most<4>(g.stages - 2);
    producer.load(at + g.stages - 1 < count);
    if (tile.has(walk)) {
      const uint32_t slot = stage + tile.place.x + tile.warp * kSparseSlot<Bits>, side = slot + 4 * Tile::kTile;
      const SparseOperands operands{slot + tile.lane * (4 * Bits),
                                    side + tile.lane * 4,
                                    side + 1024 + FragmentA<16>::row(tile.lane, 0) * 16,
                                    stage + 2 * tile.wk * Tile::kSlab + Matrix8x8::addressed_row(tile.lane) * 128,
                                    Tile::kTile,
                                    256};
      multiply_step<Bits, T, BF>(g, operands, tile.lane, sum);
    }
    ring.advance(stage);
    const bool column_ends = walk.column_ends(g.steps);
    if (column_ends || at + 1 == count) end_column<Bits, T, BF>(g, tile, walk, sum, [] { __syncthreads(); });
    if (column_ends) walk.next_column(g.strips);
  }
}

#if LPQ_HAS_WGMMA
// Hopper's: a group of warps more, of which one thread copies everything for the others by TMA: no copies and no
// barrier of the block in the way of those that multiply.
template <int Bits, int T, bool BF>
__device__ __forceinline__ void gemm_sparse_tma(const SparseArgs& g, const SparseMaps& maps) {
  using Tile = SparseTile<Bits, T>;
  const Tile tile{g};
  const int warps = 1 << (g.log_n + g.log_k);
  const uint32_t ring = shared_address(dynamic_shared()), full = ring + tile.place.flag + 16;
  const TmaPipeline pipeline{full, full + 8 * kMostSparseStages};
  const int first = blockIdx.x * g.per, count = max(0, min(g.per, g.strips * g.batches * g.steps - first));
  ColumnWalk walk(first, g.strips, g.steps);
  if (threadIdx.x < static_cast<unsigned>(g.stages)) {
    mbarrier_init(pipeline.full + 8 * threadIdx.x, 1);
    mbarrier_init(pipeline.empty + 8 * threadIdx.x, warps);
  }
  fence_mbarrier_init();
  __syncthreads();
  if (tile.warp >= warps) {
    setmaxnreg_dec<24>();
    if (tile.warp == warps && tile.lane == 0) produce_sparse(g, maps, tile, pipeline, ring, walk, count);
    return;
  }
  if (T <= 2) setmaxnreg_inc<112>();
  else setmaxnreg_inc<240>();
  if (g.overlap) griddepcontrol_wait_and_launch();
  const SparseStage<Bits, T> parts(g, tile.place);
  const SparseOperands first_stage{
      ring + parts.codes + 4 * tile.wk * parts.code_row + tile.wn * Tile::kTile + tile.lane * (4 * Bits),
      ring + parts.metadata + 4 * tile.wk * parts.meta_row + tile.wn * 256 + tile.lane * 4,
      ring + parts.scales + ((tile.wk << g.log_n) + tile.wn) * 128 + FragmentA<16>::row(tile.lane, 0) * 16,
      ring + 2 * tile.wk * Tile::kSlab + Matrix8x8::addressed_row(tile.lane) * 128,
      parts.code_row,
      parts.meta_row};
  float sum[4][T][4];
  clear_sums(sum);
  PipelineState state;
  for (int at = 0; at < count; ++at) {
    pipeline.consumer_wait(state);
    if (tile.has(walk)) {
      SparseOperands operands = first_stage;
      const uint32_t stage = state.stage * tile.place.stage;
      operands.codes += stage, operands.metadata += stage, operands.scales += stage, operands.x += stage;
      multiply_step<Bits, T, BF>(g, operands, tile.lane, sum);
    }
    pipeline.consumer_release(state.stage, tile.lane);
    state.advance(g.stages);
    const bool column_ends = walk.column_ends(g.steps);
    if (column_ends || at + 1 == count)
      end_column<Bits, T, BF>(g, tile, walk, sum, [&] { bar_sync(1, 32 << (g.log_n + g.log_k)); });
    if (column_ends) walk.next_column(g.strips);
  }
}
#endif

// Warps: 16 while their sums fit 128 registers.
template <int T>
constexpr int kSparseThreads = T <= 2 ? 512 : 256;

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
#define LPQ_SPARSE_TMA(name, bits, tiles, bf)                                             \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kSparseThreads<tiles> + 128, 1) \
      lpq_sparse_##name##_h##tiles(const __grid_constant__ lpq::cuda::SparseArgs g,       \
                                   const __grid_constant__ lpq::cuda::SparseMaps maps) {  \
    lpq::cuda::gemm_sparse_tma<bits, tiles, bf>(g, maps);                                 \
  }
#else
#define LPQ_SPARSE_TMA(name, bits, tiles, bf)
#endif
// Built for sm_90a alone, the others would never run.
#if !LPQ_PORTABLE_RUNS
#define LPQ_SPARSE_PLAIN(name, bits, tiles, bf)
#else
#define LPQ_SPARSE_PLAIN(name, bits, tiles, bf)                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kSparseThreads<tiles>, 1)   \
      lpq_sparse_##name##_t##tiles(const __grid_constant__ lpq::cuda::SparseArgs g) { \
    lpq::cuda::gemm_sparse<bits, tiles, bf>(g);                                       \
  }
#endif
#define LPQ_SPARSE_T(name, bits, tiles, bf) \
  LPQ_SPARSE_TMA(name, bits, tiles, bf)     \
  LPQ_SPARSE_PLAIN(name, bits, tiles, bf)
#define LPQ_SPARSE(name, bits, bf) \
  LPQ_SPARSE_T(name, bits, 1, bf)  \
  LPQ_SPARSE_T(name, bits, 2, bf)  \
  LPQ_SPARSE_T(name, bits, 4, bf)  \
  LPQ_SPARSE_T(name, bits, 8, bf)
