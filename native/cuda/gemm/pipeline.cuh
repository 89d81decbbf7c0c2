// A ring of stages in shared memory. The producer acquires a stage, fills it and commits; consumers wait for it and
// release it. Filled by TMA, barriers stand between the two; filled by cp.async, each thread copies and multiplies, and
// the block's barrier is both.
#pragma once
#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace lpq::cuda {

// cp_async_wait of kernels that never have more than Most groups under way.
template <int Most>
__device__ __forceinline__ void cp_async_wait_most(int newer) {
  if constexpr (Most > 0) {
    if (newer < Most) return cp_async_wait_most<Most - 1>(newer);
  }
  cp_async_wait<Most>();
}

// Stages by their addresses, filled by cp.async in groups, one a stage.
struct CopyPipeline {
  uint32_t begin, end;
  int bytes;  // of a stage

  __device__ __forceinline__ void advance(uint32_t& stage) const {
    stage += bytes;
    if (stage == end) stage = begin;
  }
  // What this thread copied since the last is a stage's.
  __device__ __forceinline__ void producer_commit() const { cp_async_commit(); }
  // For all threads: at most `newer` stages are still under way. The stage that all have read before this is free.
  __device__ __forceinline__ void consumer_wait(int newer) const {
    cp_async_wait(newer);
    __syncthreads();
  }
  template <int Most>
  __device__ __forceinline__ void consumer_wait_most(int newer) const {
    cp_async_wait_most<Most>(newer);
    __syncthreads();
  }
  template <int Newer>
  __device__ __forceinline__ void consumer_wait() const {
    cp_async_wait<Newer>();
    __syncthreads();
  }
};

#if LPQ_HAS_TMA
// Where a producer or consumer stands: the stage, and the parity of the ring's round.
struct PipelineState {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// Barriers, 8 bytes a stage: `full` counts the bytes that TMA brings, `empty` the warps that are done.
struct TmaPipeline {
  uint32_t full, empty;

  // Of each stage by one thread, then fence_mbarrier_init.
  __device__ __forceinline__ void init(int stage, int consumers, int producers = 1) const {
    mbarrier_init(full + 8 * stage, producers);
    mbarrier_init(empty + 8 * stage, consumers);
  }
  __device__ __forceinline__ void producer_acquire(PipelineState at) const {
    mbarrier_wait_parity(empty + 8 * at.stage, at.parity ^ 1);
  }
  // The copies that follow bring so many bytes, at the barrier that this returns.
  __device__ __forceinline__ uint32_t producer_commit(int stage, int bytes) const {
    mbarrier_arrive_expect_tx(full + 8 * stage, bytes);
    return full + 8 * stage;
  }
  __device__ __forceinline__ void consumer_wait(PipelineState at) const {
    mbarrier_wait_parity(full + 8 * at.stage, at.parity);
  }
  // By each consumer warp.
  __device__ __forceinline__ void consumer_release(int stage, int lane) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
  }
};
#endif

}  // namespace lpq::cuda
