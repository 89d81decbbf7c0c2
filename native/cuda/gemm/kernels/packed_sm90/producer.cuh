// What fills a stage of packed_sm90.cuh: one thread by TMA, and three warps that sum its activations.
#pragma once
#include "cuda/gemm/activations.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A stage: activations [2 warps_k][8 T tokens][128 bytes], weights [warps_n][warps_k][512 B], scales and zeros
// [warps_n][groups of the step][32].
__device__ __forceinline__ int groups_of_step(const GemmPackedArgs& g) {
  return g.channel ? 1 : g.groups_per_block * g.warps_k;
}
template <int B, int T>
__device__ __forceinline__ TmaStage hopper_stage(const GemmPackedArgs& g) {
  const int x_bytes = g.warps_k * 16 * T * 128, blocks = g.warps_n * g.warps_k;
  return {g, x_bytes, blocks * 512 * B, g.warps_n * groups_of_step(g), 1024, 64};
}

// The steps [first, last), by one thread.
template <int B>
__device__ __forceinline__ void produce_hopper(const GemmPackedArgs& g, const PackedMaps& maps, const TmaStage& place,
                                               const TmaPipeline& pipeline, uint32_t ring, int first, int last) {
  int strip = first / g.steps, step = first % g.steps;
  PipelineState at;
  for (int left = last - first; left > 0; --left) {
    const uint32_t to = ring + at.stage * place.bytes;
    const int nb = strip * g.warps_n, kb = step * g.warps_k;
    pipeline.producer_acquire(at);
    const uint32_t full = pipeline.producer_commit(at.stage, place.filled);
    place.load_words<B>(maps, to, nb, kb, true, full);
    tma_load_3d(to, &maps.x, 0, 0, kb * 2, full);
    place.load_factors(g, maps, to, nb, kb, g.groups_per_block, full);
    if (++step == g.steps) step = 0, ++strip;
    at.advance(g.stages);
  }
}

// S of `steps` steps, [stages][warps_k][4 groups][8 T], by warp `w` of three. Eight lanes take the eight chunks of a
// token's 64 k, so four tokens at once; not on the tensor core, which is busy.
template <int T, bool BF>
__device__ __forceinline__ void sum_stages(const GemmPackedArgs& g, const TmaPipeline& pipeline, uint32_t summed,
                                           uint32_t ring, int stage_bytes, float* sums, int steps, int w, int lane) {
  constexpr int kSlab = 8 * T * 128;
  const int items = g.warps_k * 2 * T, eighth = lane & 7;
  const auto eight = [&](uint32_t slab, int row) {
    uint32_t pairs[4];
    float two[4];
    ld_shared_v4(pairs, slab + row * 128 + ((eighth ^ (row & 7)) << 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) two[i] = sum_of_pair<BF>(pairs[i]);
    return (two[0] + two[1]) + (two[2] + two[3]);
  };
  const auto with = [](float v, int distance) { return v + __shfl_xor_sync(0xffffffffu, v, distance); };
  PipelineState at;
  for (; steps > 0; --steps) {
    pipeline.consumer_wait(at);
#pragma unroll 2
    for (int i = w; i < items; i += 3) {
      const int wk = i / (2 * T), row = i % (2 * T) * 4 + (lane >> 3);
      const uint32_t slab = ring + at.stage * stage_bytes + 2 * wk * kSlab;
      float front = eight(slab, row), back = eight(slab + kSlab, row);
      float* to = sums + ((at.stage * g.warps_k + wk) * 4) * 8 * T + row;
      if (g.groups_per_block == 1) {
        front = with(with(with(front + back, 1), 2), 4);
        if (eighth == 0) *to = front;
      } else {
        front = with(with(front, 1), 2), back = with(with(back, 1), 2);
        if (g.groups_per_block == 4) {
          if ((eighth & 3) == 0) to[(eighth >> 2) * 8 * T] = front, to[(2 + (eighth >> 2)) * 8 * T] = back;
        } else {
          front = with(front, 4), back = with(back, 4);
          if (eighth == 0) to[0] = front, to[8 * T] = back;
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(summed + 8 * at.stage), mbarrier_arrive(pipeline.empty + 8 * at.stage);
    at.advance(g.stages);
  }
}

#endif

}  // namespace lpq::cuda
