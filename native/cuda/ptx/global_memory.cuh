// Global memory: loads past L1, hints for L2, what blocks tell each other.
#pragma once
#include <cstdint>

namespace lpq::cuda {

// The policy of what L2 should drop first. ptxas 13 drops createpolicy in some kernels of sm_90, which leaves the copy
// with an undefined
// descriptor: those take kEvictFirst, its value.
__device__ __forceinline__ uint64_t createpolicy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;

// Past L1. Those that end in _if load only where `wanted`, without a branch; else `to` stays.
__device__ __forceinline__ uint32_t ld_global_nc(const void* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
__device__ __forceinline__ void ld_global_nc_v2_if(uint2& to, const void* from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "l"(from), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void ld_global_nc_v4_if(uint32_t* to, const void* from, uint64_t policy, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n}"
      : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
      : "l"(from), "l"(policy), "r"(static_cast<int>(wanted)));
}
// A half-word or a byte to the low bits of `to`.
__device__ __forceinline__ void ld_global_nc_u16_if(uint32_t& to, const void* from, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, %1, 0;\n@p ld.global.nc.u16 h, [%2];\n@p cvt.u32.u16 %0, h;\n}"
      : "+r"(to)
      : "r"(static_cast<int>(wanted)), "l"(from));
}
__device__ __forceinline__ void ld_global_nc_u8_if(uint32_t& to, const void* from, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p ld.global.nc.u8 %0, [%2];\n}"
               : "+r"(to)
               : "r"(static_cast<int>(wanted)), "l"(from));
}

__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// `bytes` (a multiple of 16) to L2.
__device__ __forceinline__ void bulk_prefetch_l2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Acquires on the device: what was stored before a release that this sees is seen by what follows.
__device__ __forceinline__ unsigned ld_acquire(const unsigned* from) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
// Until `*counter` is at least `value`, which a block of the same launch will count up to.
__device__ __forceinline__ void wait_for_count(const unsigned* counter, unsigned value) {
  while (ld_acquire(counter) < value) {
  }
}
// Counts one more and returns how many there were. Releases and acquires on the device.
__device__ __forceinline__ unsigned atom_inc_acq_rel(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

}  // namespace lpq::cuda
