// W4Ax on Hopper's wgmma: y = x Wᵀ of 4-bit weights with a scale a row and group of 128, and activations of 8 or 4 bits
// by blocks of 128 channels with a scale a token and block, 128 of k a step. Rows of weights are the rows of the
// product, so that a tile has as few tokens as the case wants. Nibbles lie as the registers of wgmma's operand A want
// them and become 16 code by one AND, after a shift for half of them. Sums of 128 of k are exact, scaled in fp32.
// Activations of 4 bits are copied as they are and widened in shared memory by the warps that feed.
// One thread feeds the pipeline by TMA; blocks of a cluster have one strip of weights, each fetching half of it for
// both. Items beyond whole rounds are stream-K: equal runs of steps, whose sums go through the workspace in the order
// of K.
//
// A strip of nibbles, 256 rows by 128 k: each 16 rows 1 KiB, in it vector v (of 2) of a lane 16 bytes, and
//   word i of it: nibbles `high` -> (lane, reg i % 2 + 2 high) of WarpgroupA<8> of 32 k number 2 v + i / 2, i.e.
//                 n = lane / 4 + 8 (i % 2), k = 32 (2 v + i / 2) + 4 (lane % 4) + byte + 16 high
// Sums: (lane, [tile][reg]) -> n, m as WarpgroupD has them; w4ax_products.cuh says which rows are a warp's.
#pragma once
#include "cuda/gemm/kernels/w4ax_epilogue.cuh"
#include "cuda/gemm/kernels/w4ax_producer.cuh"
#include "cuda/gemm/kernels/w4ax_products.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A warp is done with a stage, in both blocks where one fetched for both.
__device__ __forceinline__ void release_w4ax(const W4axArgs& a, const W4axRing& ring, int stage, int lane) {
  __syncwarp();
  if (lane != 0) return;
  const uint32_t empty = ring.pipeline.empty + 8 * stage;
  if (a.cluster == 2) mbarrier_arrive_cluster(empty, 0), mbarrier_arrive_cluster(empty, 1);
  else mbarrier_arrive(empty);
}

// The main loop: `length` steps of an item, from where `walk` stands.
template <int T>
__device__ __forceinline__ void accumulate(const W4axArgs& a, const W4axRing& ring, W4axWalk& walk,
                                           PipelineState& state, int length, const W4axWarp& place,
                                           typename W4axStep<T>::Sums (&sum)[2]) {
  using Step = W4axStep<T>;
#pragma unroll 1
  for (int step = 0; step < length; ++step) {
    const uint32_t at = ring.stages + state.stage * Step::kStage.bytes;
    const float unpower = unpower_of(a, walk.kb);
    ring.pipeline.consumer_wait(state);
#pragma unroll
    for (int pass = 0; pass < 2; pass += Step::kHalves) multiply_parts<T>(sum, at, pass, unpower, place);
    release_w4ax(a, ring, state.stage, place.lane);
    state.advance(a.stages);
    walk.next(a);
  }
}

template <int T>
__device__ __forceinline__ void consume_w4ax(const W4axArgs& a, const W4axRing& ring, const W4axUnit& unit,
                                             const W4axWarp& place) {
  using Step = W4axStep<T>;
  const uint32_t staging = ring.stages + a.stages * Step::kStage.bytes + place.warp * 512;
  const bool leader = threadIdx.x == 0;
  const auto sync = [] { bar_sync(1, 32 * kW4axWarps); };
  const auto counter_of = [&](int item) { return a.counters + 2 * (item * a.cluster + unit.rank); };
  W4axWalk walk(a, unit.number, unit.count);
  const int first = walk.first, last = first + walk.left;
  PipelineState state;
  if (Step::kTurns && place.group == 1) bar_arrive(2, 32 * kW4axWarps);
  for (int to_go = walk.steps; to_go > 0;) {
    // An item, or as much of it as is this block's.
    const int item = walk.item, length = walk.left > 0 ? min(walk.left, a.k_blocks - walk.kb) : a.k_blocks;
    to_go -= length;
    typename Step::Sums sum[2] = {};
    accumulate<T>(a, ring, walk, state, length, place, sum);
    if (length == a.k_blocks) {
      store_item<T>(a, item, unit.rank, place, sum, staging);
    } else {
      keep_part<T>(a, item == first / a.k_blocks, place, sum);
      publish_part(counter_of(item), leader, sync);
    }
  }
  if (Step::kTurns && place.group == 0) bar_sync(2, 32 * kW4axWarps);  // the other's last pass
  const EvenRuns runs(a.shared, a.k_blocks, unit.count);
  fixup_together(runs, first, last, leader, counter_of, sync, [&](int item, const TileSharers& sharers) {
    add_up_parts<T>(a, runs, sharers, item, unit, place, staging);
  });
}

template <int T>
__device__ __forceinline__ void gemm_w4ax(const W4axArgs& a, const W4axMaps& maps) {
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const W4axUnit unit(a);
  const W4axRing ring(shared_address(dynamic_shared()));
  if (threadIdx.x == 0) ring.init(a);
  __syncthreads();
  if (a.cluster == 2) cluster_sync();
  if (warp < kW4axWarps) {
    setmaxnreg_inc<232>();
    consume_w4ax<T>(a, ring, unit, W4axWarp(lane, warp));
  } else {
    setmaxnreg_dec<40>();
    if (warp == kW4axWarps) {
      if (lane == 0) produce_w4ax<T>(a, maps, ring, unit);
    } else {
      widen_w4ax<T>(a, ring, unit);
    }
  }
  if (a.cluster == 2) cluster_sync();  // nobody leaves while another may still write to its shared memory
}

#endif

}  // namespace lpq::cuda

// Compiled for sm_90a alone (scripts/build-cuda.mjs): elsewhere there would be kernels that do nothing.
#define LPQ_GEMM_W4AX(tiles)                                                                                \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kW4axThreads, 1)                                  \
      lpq_gemm_act_w4ax_m##tiles(lpq::cuda::W4axArgs a, const __grid_constant__ lpq::cuda::W4axMaps maps) { \
    lpq::cuda::gemm_w4ax<tiles>(a, maps);                                                                   \
  }
