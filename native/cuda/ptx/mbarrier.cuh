// mbarrier: arrivals, and bytes that TMA has brought. Barriers are named by their address in shared memory.
#pragma once
#include <cstdint>

#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_TMA
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Barriers that one thread made are seen by the others of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives at the barrier of block `rank` that lies where `barrier` lies in this one. Nothing was stored that the other
// would have to see, so that there is no release to the cluster, which would be a fence of everything: with it all took
// twice as long.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, "
      "[there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
#endif

}  // namespace lpq::cuda
