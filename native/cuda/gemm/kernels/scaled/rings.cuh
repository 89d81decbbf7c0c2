// The two rings of scaled.cuh and act8.cuh, and how a block begins.
#pragma once
#include "cuda/gemm/families/scaled.h"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Shared memory: barriers of both rings, the barrier of a cluster's sums, 128 bytes of zeros, and from byte 1024 on the
// stages, activations first.
struct ScaledRings {
  uint32_t barriers;
  TmaPipeline weights, activations;

  __device__ __forceinline__ explicit ScaledRings(uint32_t at)
      : barriers(at), weights{at, at + 8 * kMostScaledStages}, activations{at + 128, at + 128 + 8 * kMostScaledSlabs} {}
  __device__ __forceinline__ uint32_t stages() const { return barriers + 1024; }
  // By all threads; `warps` consume, T eights of tokens and P products a warp.
  template <int T, int P>
  __device__ __forceinline__ void init(const ScaledArgs& a, int stages, int warps) const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < stages; ++s) weights.init(s, warps);
      for (int s = 0; s < a.slabs; ++s) activations.init(s, warps);
      if (a.cluster) mbarrier_init(barriers + kScaledSumsFull, 1);
      fence_mbarrier_init();
      fence_proxy_async_shared();
      if (a.cluster)
        mbarrier_arrive_expect_tx(barriers + kScaledSumsFull,
                                  ScaledShares(T, P, a.cluster).bytes(blockIdx.x % a.cluster, warps));
    }
    if (threadIdx.x < 32) st_shared(barriers + 896 + 4 * threadIdx.x, 0);
    __syncthreads();
    if (a.cluster) cluster_arrive_relaxed();  // other blocks may send once this one's barrier exists
  }
  // 0, which the compiler does not know: what it knows to be alike in all lanes, or constant, it makes anew for each
  // use.
  __device__ __forceinline__ uint32_t unknown_zero(int lane) const { return ld_shared(barriers + 896 + 4 * lane); }
};

#endif

}  // namespace lpq::cuda
