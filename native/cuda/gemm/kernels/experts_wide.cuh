// The product of experts.cuh for many rows an expert, with the parts of wide.cuh: strips of up to 256 rows of weights,
// zero points that leave in the pairs, no sums of activations, results sixteen bytes a lane. Items and their order are
// those of experts/items.cuh; boxes bring what they bring to experts_sm90.cuh.
//
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh), 16-row half by half WarpgroupA<16>'s warp
//   sums (lane, [tile][reg]) of sum[half] -> (n = 16 half + row, token = 8 tile + column) of FragmentC
#pragma once
#include "cuda/gemm/kernels/experts/items.cuh"
#include "cuda/gemm/kernels/wide/epilogue.cuh"
#include "cuda/gemm/kernels/wide/products.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// The steps [first, last), by one thread.
template <int B, int T>
__device__ __forceinline__ void produce_experts_wide(const GemmPackedArgs& g, const WideArgs& a,
                                                     const ExpertItems<T>& items, const PackedMaps& maps,
                                                     const TmaStage& place, int per_block, const TmaPipeline& pipeline,
                                                     uint32_t ring, int first, int last) {
  fence_proxy_async();  // x was written by the operation before
  int item = first / g.k_blocks, kb = first % g.k_blocks;
  ExpertItem of = items.at(item);
  PipelineState at;
  for (int left = last - first; left > 0; --left) {
    const uint32_t to = ring + at.stage * place.bytes;
    const int nb = of.expert * g.n_blocks + of.strip * a.width;
    pipeline.producer_acquire(at);
    const uint32_t full = pipeline.producer_commit(at.stage, place.filled);
    place.load_words<B>(maps, to, nb, kb, of.once, full);
    place.load_factors(g, maps, to, nb, kb, per_block, full);
    tma_load_3d(to, &maps.x, 0, of.row, 2 * kb, full);
    if (++kb == g.k_blocks) {
      kb = 0, ++item;
      if (left > 1) of = items.at(item);
    }
    at.advance(g.stages);
  }
}

// One, BF, Cast: as of gemm_wide(). `a`: with the token tiles of one item, 1.
template <int B, int T, bool One, bool BF, class Cast>
__device__ __forceinline__ void gemm_experts_wide(const GemmPackedArgs& g, const WideArgs& a, const ExpertArgs& experts,
                                                  const PackedMaps& maps) {
  constexpr int H = kWideBlocks<T>;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int per_block = One ? 1 : g.groups_per_block;       // groups
  const TmaStage place(g, 16 * T * 128, a.width * 512 * B, a.width * per_block, 1024);
  unsigned char* const shared = dynamic_shared();
  const uint32_t barriers = shared_address(shared), ring = barriers + 1024 + expert_plan_bytes(experts.experts);
  const TmaPipeline pipeline{barriers, barriers + 8 * kWideStages};

  if (threadIdx.x == blockDim.x - 1) prefetch_maps(g, maps);
  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) pipeline.init(s, warps);
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  griddepcontrol_wait_and_launch();
  int* const plan = reinterpret_cast<int*>(shared + 1024);
  if (warp == 0) ExpertItems<T>::make(experts, g.m, plan, lane);
  __syncthreads();
  const ExpertItems<T> items(plan, experts.experts, g.strips);
  const ExpertRuns runs = items.runs(g.k_blocks, experts.sharing, static_cast<int>(gridDim.x));
  if (blockIdx.x >= runs.even.blocks) return;
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1);

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps && lane == 0)
      produce_experts_wide<B>(g, a, items, maps, place, per_block, pipeline, ring, first, last);
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const Cast cast(g.is_signed != 0, g.exponent);
  uint32_t minus[4];  // what is added to the pairs of row class r
  wide_offsets<BF, Cast>(g.zero, minus);
  WideMultiplier<B, T, One, BF, Cast> multiplier{g, a, lane, cast, false, minus};
  const uint32_t staging = ring + g.stages * place.bytes + warp * 512;
  const auto sync = [warps] { bar_sync(1, 32 * warps); };
  float sum[H][2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int h = 0; h < H; ++h) clear_sums(sum[h]);
  };
  clear();
  const auto counter_of = [&](int item) { return g.counters + 2 * runs.even.sharers(item).from; };
  int item = first / g.k_blocks, kb = first % g.k_blocks;
  PipelineState at;
  bool began_inside = kb != 0;
  for (int step = first; step < last; ++step) {
    pipeline.consumer_wait(at);
    multiply_stage(multiplier, sum, g, a, place, ring + at.stage * place.bytes, warp, warps, lane, per_block, 0, kb);
    pipeline.consumer_release(at.stage, lane);
    at.advance(g.stages);

    const bool item_ends = ++kb == g.k_blocks;
    if (item_ends || step + 1 == last) {
      const ExpertItem of = items.at(item);
      const ExpertProduct own = product_of<B>(g, experts, of);
      const WideEpilogue<T, BF, ExpertProduct> epilogue{own, a, staging, lane, warp, warps};
      if (item_ends && !began_inside) {
        epilogue.store_item(sum, of.strip);
      } else {
        epilogue.keep_part(sum, item == first / g.k_blocks ? 0 : 1);
        publish_part(counter_of(item), threadIdx.x == 0, sync);
      }
      clear();
      if (item_ends) kb = 0, ++item, began_inside = false;
    }
  }
  fixup_together(runs.even, first / runs.scale, last / runs.scale, threadIdx.x == 0, counter_of, sync,
                 [&](int shared_item, const TileSharers& sharers) {
                   const ExpertItem of = items.at(shared_item);
                   const ExpertProduct own = product_of<B>(g, experts, of);
                   const WideEpilogue<T, BF, ExpertProduct> epilogue{own, a, staging, lane, warp, warps};
                   epilogue.add_up(runs.even, of.strip, sharers);
                 });
}

#endif

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
// kind _o: one group a packed block; _g: any.
#define LPQ_EXPERTS_WIDE(name, tiles, bits, bf, cast, kind, one)                                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kWideThreads<tiles>, 1) lpq_experts_##name##_m##tiles##kind( \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::WideArgs a,              \
      const __grid_constant__ lpq::cuda::ExpertArgs experts, const __grid_constant__ lpq::cuda::PackedMaps maps) {     \
    lpq::cuda::gemm_experts_wide<bits, tiles, one, bf, lpq::cuda::cast<bits, bf>>(g, a, experts, maps);                \
  }
#else
#define LPQ_EXPERTS_WIDE(name, tiles, bits, bf, cast, kind, one)
#endif
