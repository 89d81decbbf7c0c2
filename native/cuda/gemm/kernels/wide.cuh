// The same product as packed.cuh for more than a few tokens, on Hopper's wgmma (weights in registers: the packed
// order is that of its operand A; activations behind a descriptor):
//  - a strip is as wide as registers allow, up to 512 rows, because every block reads the activations of its strips
//    again;
//  - zero points leave in the pairs, where a half or bf16 holds code - zero exactly: one addition a pair, no sums of
//    activations. The rest (fractions, bf16 with zero points of groups) goes through sums that an earlier kernel made;
//  - scales are applied to the sums of a group, so products stay exact;
//  - every block gets an equal run of steps (a packed block of K of a strip and tile of tokens), along K first. Sums of
//    an item that several blocks share go through the workspace and are added up by all of them, a share each, in the
//    order of K;
//  - results leave in rows of 32 columns, sixteen bytes a lane.
// One warp fills a ring of stages by TMA, a step a stage; the others multiply, each 32 rows of one packed block (two of
// them one after the other for up to 64 tokens). The code of a step has to stay small: two or
// four warpgroups at different places of it share one instruction cache.
//
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh), 16-row half by half WarpgroupA<16>'s warp
//   sums (lane, [tile][reg]) of sum[half] -> (n = 16 half + row, token = 8 tile + column) of FragmentC
#pragma once
#include "cuda/gemm/kernels/wide/epilogue.cuh"
#include "cuda/gemm/kernels/wide/products.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// The steps [first, last), by one thread. Weights may come before the operation before has ended.
template <int B, int T>
__device__ __forceinline__ void produce_wide(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps,
                                             const TmaStage& place, int per_block, const TmaPipeline& pipeline,
                                             uint32_t ring, int first, int last) {
  const auto weights = [&](int item, int kb, int stage) {
    const uint32_t to = ring + stage * place.bytes, full = pipeline.producer_commit(stage, place.filled);
    const int nb = item / a.token_tiles * a.width;
    place.load_words<B>(maps, to, nb, kb, a.token_tiles == 1, full);
    place.load_factors(g, maps, to, nb, kb, per_block, full);
  };
  int item = first / g.k_blocks, kb = first % g.k_blocks, begun = 0;
  if (a.overlap) {
    begun = min(g.stages, last - first);
    for (int s = 0, i = item, k = kb; s < begun; ++s) {
      weights(i, k, s);
      if (++k == g.k_blocks) k = 0, ++i;
    }
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    griddepcontrol_launch_dependents();
  }
  PipelineState at;
  for (int step = first; step < last; ++step) {
    if (step - first >= begun) {
      pipeline.producer_acquire(at);
      weights(item, kb, at.stage);
    }
    tma_load_3d(ring + at.stage * place.bytes, &maps.x, 0, item % a.token_tiles * 8 * T, 2 * kb,
                pipeline.full + 8 * at.stage);
    if (++kb == g.k_blocks) kb = 0, ++item;
    at.advance(g.stages);
  }
}

template <int B, int T, bool One, bool BF, class Cast>
__device__ __forceinline__ void gemm_wide(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps) {
  constexpr int H = kWideBlocks<T>;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int per_block = One ? 1 : g.groups_per_block;       // groups
  const EvenRuns runs(a.items, g.k_blocks, gridDim.x);
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1);
  const TmaStage place(g, 16 * T * 128, a.width * 512 * B, a.width * per_block, 1024);
  const uint32_t barriers = shared_address(dynamic_shared()), ring = barriers + 1024;
  const TmaPipeline pipeline{barriers, barriers + 8 * kWideStages};

  if (threadIdx.x == blockDim.x - 1) prefetch_maps(g, maps);
  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) pipeline.init(s, warps);
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps && lane == 0) produce_wide<B, T>(g, a, maps, place, per_block, pipeline, ring, first, last);
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const Cast cast(g.is_signed != 0, g.exponent);
  const bool sums = !One && a.zero_mode == kZeroSums;
  uint32_t minus[4];  // what is added to the pairs of row class r
  wide_offsets<BF, Cast>(sums ? 0.0f : g.zero, minus);
  WideMultiplier<B, T, One, BF, Cast> multiplier{g, a, lane, cast, sums, minus};
  const WideEpilogue<T, BF> epilogue{g, a, ring + g.stages * place.bytes + warp * 512, lane, warp, warps};
  const auto sync = [warps] { bar_sync(1, 32 * warps); };
  float sum[H][2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int h = 0; h < H; ++h) clear_sums(sum[h]);
  };
  clear();
  int item = first / g.k_blocks, kb = first % g.k_blocks;
  PipelineState at;
  bool began_inside = kb != 0;
  for (int step = first; step < last; ++step) {
    const uint32_t stage = ring + at.stage * place.bytes;
    pipeline.consumer_wait(at);
    multiply_stage(multiplier, sum, g, a, place, stage, warp, warps, lane, per_block, item, kb);
    pipeline.consumer_release(at.stage, lane);
    at.advance(g.stages);

    const bool item_ends = ++kb == g.k_blocks;
    if (item_ends || step + 1 == last) {
      if (item_ends && !began_inside) {
        epilogue.store_item(sum, item);
      } else {
        epilogue.keep_part(sum, item == first / g.k_blocks ? 0 : 1);
        publish_part(g.counters + 2 * item, threadIdx.x == 0, sync);
      }
      clear();
      if (item_ends) kb = 0, ++item, began_inside = false;
    }
  }
  fixup_together(
      runs, first, last, threadIdx.x == 0, [&](int shared_item) { return g.counters + 2 * shared_item; }, sync,
      [&](int shared_item, const TileSharers& sharers) { epilogue.add_up(runs, shared_item, sharers); });
}

#endif

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
// kind _o: one group a packed block; _g: any.
#define LPQ_GEMM_WIDE(name, tiles, bits, bf, cast, kind, one)                                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kWideThreads<tiles>, 1) lpq_gemm_##name##_m##tiles##kind( \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::WideArgs a,           \
      const __grid_constant__ lpq::cuda::PackedMaps maps) {                                                         \
    lpq::cuda::gemm_wide<bits, tiles, one, bf, lpq::cuda::cast<bits, bf>>(g, a, maps);                              \
  }
#else
#define LPQ_GEMM_WIDE(name, tiles, bits, bf, cast, kind, one)
#endif
