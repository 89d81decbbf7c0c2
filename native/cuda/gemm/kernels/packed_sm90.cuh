// The same product as packed.cuh, cut and added up in the same way, with what Hopper has for it: wgmma with the
// weights in registers (the packed order is that of its operand A too) and the activations behind a descriptor; TMA, by
// one producer warp, so that consumers spend no instruction on loads; three more warps that sum activations. A step is
// one box of each tensor, three or four copies, each of which costs its thread about a hundred cycles. Barriers count
// bytes (full), warps that are done with a stage (empty), and sums (summed).
//
//   weights (lane, pair) -> (n, k): PackedChunk (packed_words.cuh)
//   sums (lane, reg) of sum[nt][t] -> (n = 16 nt + row, token = 8 t + column) of FragmentC
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/packed_sm90/producer.cuh"
#include "cuda/gemm/kernels/packed_sm90/products.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_packed_hopper(const GemmPackedArgs& g, const PackedMaps& maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = g.warps_n * g.warps_k;  // that multiply; a multiple of four
  const TmaStage place = hopper_stage<B, T>(g);
  const uint32_t barriers = shared_address(shared), summed = barriers + 16 * kMostStages, ring = barriers + 1024;
  const TmaPipeline pipeline{barriers, barriers + 8 * kMostStages};
  float* const sums =
      reinterpret_cast<float*>(shared + 1024 + g.stages * place.bytes);  // [stages][warps_k][4 groups][8 T]
  float4* const exchange = reinterpret_cast<float4*>(sums + g.stages * g.warps_k * 32 * T);

  const EvenRuns runs(g.strips, g.steps, gridDim.x);
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1);

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      pipeline.init(s, warps + (Cast::kSums ? 3 : 0));
      mbarrier_init(summed + 8 * s, 3);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps) {
      if (lane == 0) produce_hopper<B>(g, maps, place, pipeline, ring, first, last);
    } else if (Cast::kSums) {
      sum_stages<T, BF>(g, pipeline, summed, ring, place.bytes, sums, last - first, warp - warps - 1, lane);
    }
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const int wn = warp % g.warps_n, wk = warp / g.warps_n, threads = warps * 32;
  const auto sync = [threads] { bar_sync(1, threads); };
  const Cast cast(g.is_signed != 0, g.exponent);
  float sum[2][T][4];
  clear_sums(sum);

  const int front = first / g.steps;
  int strip = front, step = first % g.steps;
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

    const bool strip_ends = ++step == g.steps;
    if (strip_ends || done + 1 == last)
      end_strip<T, BF>(g, sum, exchange, strip, strip == front, strip_ends && !began_inside, wn, wk, lane, sync);
    if (strip_ends) step = 0, ++strip, began_inside = false;
  }
  finish_shared<T, BF>(g, runs, first, last, threadIdx.x, threads, sync);
}

#endif

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
#define LPQ_GEMM_HOPPER(name, tiles, bits, bf, cast)                                                             \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kHopperThreads<tiles>, 1) lpq_gemm_##name##_h##tiles(  \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::PackedMaps maps) { \
    lpq::cuda::gemm_packed_hopper<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, maps);                          \
  }
#else
#define LPQ_GEMM_HOPPER(name, tiles, bits, bf, cast)
#endif
