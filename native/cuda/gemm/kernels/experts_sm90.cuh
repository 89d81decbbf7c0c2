// The product of experts.cuh with what Hopper has for it, as packed_sm90.cuh: wgmma with the weights in registers, one
// warp that fills the stages by TMA, three that sum activations. The weights of all experts are one tensor to TMA, rows
// of the next expert below those of the one before; so are the rows of x. What a box brings of another expert is
// multiplied and not stored.
//
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh)
//   sums (lane, reg) of sum[nt][t] -> (n = 16 nt + row, token = 8 t + column) of FragmentC
#pragma once
#include "cuda/gemm/kernels/experts/sums.cuh"
#include "cuda/gemm/kernels/packed_sm90/producer.cuh"
#include "cuda/gemm/kernels/packed_sm90/products.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// The steps [first, last), by one thread.
template <int B, int T>
__device__ __forceinline__ void produce_experts(const GemmPackedArgs& g, const ExpertItems<T>& items,
                                                const PackedMaps& maps, const TmaStage& place,
                                                const TmaPipeline& pipeline, uint32_t ring, int first, int last) {
  fence_proxy_async();  // x was written by the operation before
  int item = first / g.steps, step = first % g.steps;
  ExpertItem of = items.at(item);
  PipelineState at;
  for (int left = last - first; left > 0; --left) {
    const uint32_t to = ring + at.stage * place.bytes;
    const int nb = of.expert * g.n_blocks + of.strip * g.warps_n, kb = step * g.warps_k;
    pipeline.producer_acquire(at);
    const uint32_t full = pipeline.producer_commit(at.stage, place.filled);
    place.load_words<B>(maps, to, nb, kb, of.once, full);
    tma_load_3d(to, &maps.x, 0, of.row, kb * 2, full);
    place.load_factors(g, maps, to, nb, kb, g.groups_per_block, full);
    if (++step == g.steps) {
      step = 0, ++item;
      if (left > 1) of = items.at(item);
    }
    at.advance(g.stages);
  }
}

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_experts_hopper(const GemmPackedArgs& g, const ExpertArgs& a,
                                                    const PackedMaps& maps) {
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = g.warps_n * g.warps_k;  // that multiply; a multiple of four
  const TmaStage place = hopper_stage<B, T>(g);
  unsigned char* const stages = shared + 1024 + expert_plan_bytes(a.experts);
  const uint32_t barriers = shared_address(shared), summed = barriers + 16 * kMostStages, ring = shared_address(stages);
  const TmaPipeline pipeline{barriers, barriers + 8 * kMostStages};
  float* const sums = reinterpret_cast<float*>(stages + g.stages * place.bytes);  // [stages][warps_k][4 groups][8 T]
  float4* const exchange = reinterpret_cast<float4*>(sums + g.stages * g.warps_k * 32 * T);

  if (threadIdx.x == blockDim.x - 1) prefetch_maps(g, maps);
  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      pipeline.init(s, warps + (Cast::kSums ? 3 : 0));
      mbarrier_init(summed + 8 * s, 3);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  griddepcontrol_wait_and_launch();
  int* const plan = reinterpret_cast<int*>(shared + 1024);
  if (warp == 0) ExpertItems<T>::make(a, g.m, plan, lane);
  __syncthreads();
  const ExpertItems<T> items(plan, a.experts, g.strips);
  const ExpertRuns runs = items.runs(g.steps, a.sharing, static_cast<int>(gridDim.x));
  if (blockIdx.x >= runs.even.blocks) return;
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1);

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps) {
      if (lane == 0) produce_experts<B>(g, items, maps, place, pipeline, ring, first, last);
    } else if (Cast::kSums) {
      sum_stages<T, BF>(g, pipeline, summed, ring, place.bytes, sums, last - first, warp - warps - 1, lane);
    }
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const int wn = warp % g.warps_n, wk = warp / g.warps_n, threads = warps * 32;
  const auto sync = [threads] { bar_sync(1, threads); };
  const Cast cast(g.is_signed != 0, g.exponent);
  const ExpertSums<B, T, BF> results{g, a, items, runs};
  float sum[2][T][4];
  clear_sums(sum);

  const int front = first / g.steps;
  int item = front, step = first % g.steps;
  bool began_inside = step != 0;
  PipelineState at;
  for (int done = first; done < last; ++done) {
    pipeline.consumer_wait(at);
    // A warpgroup multiplies together, whether all of its rows exist or not.
    const int kb = step * g.warps_k + wk;
    if (kb < g.k_blocks)
      multiply_block<B, T, BF>(g, cast, sum, place, ring + at.stage * place.bytes, wn, wk, kb,
                               sums + (at.stage * g.warps_k + wk) * 4 * 8 * T, lane,
                               [&] { mbarrier_wait_parity(summed + 8 * at.stage, at.parity); });
    pipeline.consumer_release(at.stage, lane);
    at.advance(g.stages);

    const bool item_ends = ++step == g.steps;
    if (item_ends || done + 1 == last)
      results.end(sum, exchange, item, item == front ? 0 : 1, item_ends && !began_inside, wn, wk, lane, sync);
    if (item_ends) step = 0, ++item, began_inside = false;
  }
  results.finish(first, last, threadIdx.x, threads, sync);
}

#endif

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
#define LPQ_EXPERTS_HOPPER(name, tiles, bits, bf, cast)                                                            \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kHopperThreads<tiles>, 1) lpq_experts_##name##_h##tiles( \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::ExpertArgs a,        \
      const __grid_constant__ lpq::cuda::PackedMaps maps) {                                                        \
    lpq::cuda::gemm_experts_hopper<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, a, maps);                        \
  }
#else
#define LPQ_EXPERTS_HOPPER(name, tiles, bits, bf, cast)
#endif
