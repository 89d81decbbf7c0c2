// Thread block clusters: barriers of all their threads, shared memory of one another.
#pragma once
#include <cstdint>

#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_TMA
__device__ __forceinline__ int cluster_ctarank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// What any block of the cluster stored before, every block sees after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address in block `rank` of the cluster of what lies at `address` of this one.
__device__ __forceinline__ uint32_t mapa_shared(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void st_shared_cluster_v4(uint32_t address, float4 f) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(f.x), "f"(f.y), "f"(f.z), "f"(f.w)
               : "memory");
}
// The same; its bytes count at `barrier` of that block, whose phase ends when all have come.
__device__ __forceinline__ void st_async_v4(uint32_t address, uint32_t barrier, float4 f) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(address),
      "f"(f.x), "f"(f.y), "f"(f.z), "f"(f.w), "r"(barrier)
      : "memory");
}
#endif

}  // namespace lpq::cuda
