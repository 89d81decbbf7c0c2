// Instructions that the wide kernel alone uses. The host has its own in test/native/simt/simt_hopper.h.
#pragma once
#include <cstdint>

#include "cuda/kernels/mma.cuh"

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// a + b for pairs of f16 or bf16, one rounding each.
template <bool BF>
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  if (BF) asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
// a * b, and a * b + c, for pairs, one rounding each.
template <bool BF>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  if (BF) asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
template <bool BF>
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  if (BF) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Two numbers as a pair, the first in the lower half.
template <bool BF>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
  uint32_t d;
  if (BF) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
// Either half of a word, in both halves.
__device__ __forceinline__ uint32_t lower_twice(uint32_t word) { return __byte_perm(word, 0, 0x1010); }
__device__ __forceinline__ uint32_t upper_twice(uint32_t word) { return __byte_perm(word, 0, 0x3232); }
__device__ __forceinline__ uint32_t dynamic_shared_address() {
  extern __shared__ __align__(1024) unsigned char shared[];
  return shared_address(shared);
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void load_shared8(uint32_t& low, uint32_t& high, uint32_t address) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(low), "=r"(high) : "r"(address) : "memory");
}
__device__ __forceinline__ unsigned load_acquired(const unsigned* from) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory"); }
// Barriers that were set up are seen by the bulk engine.
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void launch_next_operation() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// The bulk engine, too, sees what the operation before has written.
__device__ __forceinline__ void await_operation_before() { asm volatile("griddepcontrol.wait;\nfence.proxy.async;" ::: "memory"); }
// The compiler is told that asynchronous products have written `v`.
__device__ __forceinline__ void written_by_products(float& v) { asm volatile("" : "+f"(v)::"memory"); }

#endif

}  // namespace lpq::cuda
