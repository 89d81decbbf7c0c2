// The streaming kernel's instructions: loads past L1, what blocks of a cluster do together, launches that overlap.
#pragma once
#include <cstdint>

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char shared[];
  return shared;
}
// The policy of what L2 should drop first.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Sixteen bytes that are read once, if `wanted`: past L1, first to leave L2.
__device__ __forceinline__ void load_once(uint32_t* to, const void* from, uint64_t policy, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n}"
      : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
      : "l"(from), "l"(policy), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void load_pair(uint2& to, const void* from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "l"(from), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ uint32_t load_word(const void* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
// `bytes` (a multiple of 16) to L2.
__device__ __forceinline__ void prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Until the operation before has ended and all that it wrote is seen; from here on the next may start.
__device__ __forceinline__ void wait_for_operation_before() { asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// What any block of the cluster stored before, every block sees after.
__device__ __forceinline__ void cluster_barrier() { asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address in block `rank` of the cluster of what lies at `address` of this one.
__device__ __forceinline__ uint32_t shared_of_block(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void store_cluster(uint32_t address, float4 f) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(f.x), "f"(f.y), "f"(f.z), "f"(f.w) : "memory");
}
// One more; how many were before. Releases and acquires on the device.
__device__ __forceinline__ unsigned count_up(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

#endif

}  // namespace lpq::cuda
