// TMA: boxes of tensors of three dimensions to shared memory, innermost coordinate first, 0 beyond the tensor. Each
// counts its bytes at an mbarrier. The maps are made by tensor_maps.cpp.
#pragma once
#include <cstdint>

#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_TMA
// The first copy by a map waits for the map; this brings it sooner.
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t to, const void* map, int c0, int c1, int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
      : "memory");
}
// The same for what is read once: L2 drops it first. The policy's encoding is that of
// createpolicy.fractional.L2::evict_first.
__device__ __forceinline__ void tma_load_3d_evict_first(uint32_t to, const void* map, int c0, int c1, int c2,
                                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(0x12f0000000000000ull)
      : "memory");
}
// What this thread stored to shared memory is seen by TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// What was stored to any memory is.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
#endif

}  // namespace lpq::cuda
