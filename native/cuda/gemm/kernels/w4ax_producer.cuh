// What brings a stage of w4ax.cuh: one thread copies by TMA, and the other warps that feed widen activations of
// 4 bits.
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

constexpr int kW4axWarps = 8;  // that multiply

// A unit of work is a block, or the two of a cluster.
struct W4axUnit {
  int rank, number, count;  // of the block in its cluster; of the unit among all
  __device__ __forceinline__ explicit W4axUnit(const W4axArgs& a)
      : rank(a.cluster == 2 ? cluster_ctarank() : 0),
        number(static_cast<int>(blockIdx.x) / a.cluster),
        count(static_cast<int>(gridDim.x) / a.cluster) {}
};

// Shared memory: barriers, and from `stages` on the stages. `raw`: activations of 4 bits have landed, to be widened.
struct W4axRing {
  TmaPipeline pipeline;
  uint32_t raw, stages;
  __device__ __forceinline__ explicit W4axRing(uint32_t at)
      : pipeline{at, at + 8 * kW4axStages}, raw(at + 16 * kW4axStages), stages(at + 1024) {}
  __device__ __forceinline__ void init(const W4axArgs& a) const {
    for (int s = 0; s < a.stages; ++s) {
      mbarrier_init(pipeline.full + 8 * s, 4);
      mbarrier_init(pipeline.empty + 8 * s, kW4axWarps * a.cluster);
      mbarrier_init(raw + 8 * s, 1);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
};

// The weights of a strip and block of k, in two boxes of 128 rows. Blocks of a cluster fetch one each, for both.
__device__ __forceinline__ void fetch_weights(const W4axArgs& a, const W4axMaps& maps, uint32_t at, int strip, int kb,
                                              int rank, uint32_t barrier) {
  constexpr int kBox = kW4axRows / 2 * 64;
  const auto z = [&](int box) { return strip * 16 + box * 8; };
  if (a.cluster == 2) {
    tma_load_3d_multicast(at + rank * kBox, &maps.weights, 0, kb, z(rank), barrier);
  } else {
    for (int box = 0; box < 2; ++box) {
      if (a.token_tiles == 1) tma_load_3d_evict_first(at + box * kBox, &maps.weights, 0, kb, z(box), barrier);
      else tma_load_3d(at + box * kBox, &maps.weights, 0, kb, z(box), barrier);
    }
  }
}

template <int T>
__device__ __forceinline__ void produce_w4ax(const W4axArgs& a, const W4axMaps& maps, const W4axRing& ring,
                                             const W4axUnit& unit) {
  constexpr W4axStage kStage = w4ax_stage(T);
  W4axWalk walk(a, unit.number, unit.count);
  PipelineState state;
  for (int step = 0; step < walk.steps; ++step) {
    ring.pipeline.producer_acquire(state);
    const uint32_t at = ring.stages + state.stage * kStage.bytes;
    const int strip = walk.item / a.token_tiles, token0 = (walk.item % a.token_tiles * a.cluster + unit.rank) * 8 * T;
    int block = __ldg(a.blocks + walk.kb);
    const bool four = block < 0;
    if (four) block = ~block;
    const uint32_t raw = ring.raw + 8 * state.stage;
    if (four) {
      mbarrier_arrive_expect_tx(raw, T * 512);
      tma_load_3d(at + kStage.raw, &maps.x4, block * 64, token0, 0, raw);
    } else {
      mbarrier_arrive(raw);
    }
    const uint32_t barrier =
        ring.pipeline.producer_commit(state.stage, kStage.x + (four ? 0 : T * 1024) + kW4axRows * 4 + T * 32);
    if (!four) tma_load_3d(at + kStage.x, &maps.x, block * 128, token0, 0, barrier);
    fetch_weights(a, maps, at, strip, walk.kb, unit.rank, barrier);
    tma_load_3d(at + kStage.w_scales, &maps.w_scales, strip * (kW4axRows / 2), walk.kb, 0, barrier);
    tma_load_3d(at + kStage.x_scales, &maps.x_scales, token0 / 2, walk.kb, 0, barrier);
    walk.next(a);
    state.advance(a.stages);
  }
}

// Sixteen bytes of a token's row hold 32 codes of 4 bits: low nibbles of its bytes are the first 16, as 16 times the
// code. By three warps.
template <int T>
__device__ __forceinline__ void widen_w4ax(const W4axArgs& a, const W4axRing& ring, const W4axUnit& unit) {
  constexpr W4axStage kStage = w4ax_stage(T);
  constexpr int kFirst = 32 * (kW4axWarps + 1), kThreads = kW4axThreads - kFirst;
  W4axWalk walk(a, unit.number, unit.count);
  PipelineState state;
  for (int step = 0; step < walk.steps; ++step) {
    const bool four = __ldg(a.blocks + walk.kb) < 0;
    mbarrier_wait_parity(ring.raw + 8 * state.stage, state.parity);
    if (four) {
      const uint32_t at = ring.stages + state.stage * kStage.bytes;
#pragma unroll 2
      for (int i = static_cast<int>(threadIdx.x) - kFirst; i < T * 32; i += kThreads) {
        const int row = i >> 2, chunk = 2 * (i & 3);
        const uint4 q = ld_shared_v4(at + kStage.raw + i * 16);
        constexpr uint32_t kMask = 0xf0f0f0f0u;
        const uint32_t to = at + kStage.x + row * 128;
        st_shared_v4(to + ((chunk ^ (row & 7)) << 4),
                     make_uint4(q.x << 4 & kMask, q.y << 4 & kMask, q.z << 4 & kMask, q.w << 4 & kMask));
        st_shared_v4(to + (((chunk + 1) ^ (row & 7)) << 4),
                     make_uint4(q.x & kMask, q.y & kMask, q.z & kMask, q.w & kMask));
      }
      fence_proxy_async_shared();
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(ring.pipeline.full + 8 * state.stage);
    walk.next(a);
    state.advance(a.stages);
  }
}

#endif

}  // namespace lpq::cuda
