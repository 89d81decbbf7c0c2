// What the two blocks of a cluster tell and send each other. The host has its own in test/native/simt/simt_hopper.h.
#pragma once
#include <cstdint>

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ int block_of_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void all_of_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the barrier of block `rank` that lies where `barrier` lies in this one. Nothing was stored that the other would have to see,
// so that there is no release to the cluster, which would be a fence of everything: with it all took twice as long.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank)
               : "memory");
}
// A box for both blocks of a cluster, at the same place and barrier of each.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map),
      "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

#endif

}  // namespace lpq::cuda
