// Instructions of the attention kernels beyond those of kernels/mma.cuh, by name, so that the host can play them, too.
#pragma once
#include <cuda_fp16.h>

#include "cuda/kernels/mma.cuh"

namespace lpq::cuda {

__device__ __forceinline__ unsigned char* attention_shared() {
  extern __shared__ __align__(1024) unsigned char attention_bytes[];
  return attention_bytes;
}
// ldmatrix of four 8x8 matrices of 16-bit words, each turned over.
__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// An 8x8 matrix of halves, lane 4 r + c holding columns 2c and 2c + 1 of row r, turned over.
__device__ __forceinline__ uint32_t turn_matrix(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float low_half(uint32_t v) { return __half2float(__ushort_as_half(static_cast<unsigned short>(v))); }
__device__ __forceinline__ float high_half(uint32_t v) { return __half2float(__ushort_as_half(static_cast<unsigned short>(v >> 16))); }
// Bytes 2 X and 2 X + 1, each with a byte of 0 above.
template <int X>
__device__ __forceinline__ uint32_t two_bytes(uint32_t v) {
  return __byte_perm(v, 0, X == 0 ? 0x4140 : 0x4342);
}
__device__ __forceinline__ uint32_t half2_mul(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t half2_of(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float half_of(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ unsigned short half_bits(float v) { return __half_as_ushort(__float2half_rn(v)); }
// One more; how many were before. Releases what the block stored before its barrier, acquires what others released.
__device__ __forceinline__ unsigned count_up(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// Past L1, which may hold what another block has overwritten.
__device__ __forceinline__ float load_fresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ float4 load_fresh4(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }
__device__ __forceinline__ bool any_lane(bool v) { return __any_sync(0xffffffffu, v) != 0; }
// 2^x to 2^-22 of itself; 0 for -infinity.
__device__ __forceinline__ float power_of_two(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// Of both halves; NaN where either is.
__device__ __forceinline__ uint32_t half2_min(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t float_bits(float v) { return __float_as_uint(v); }
// 1 / x to one unit of the last place.
__device__ __forceinline__ float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// Correctly rounded.
__device__ __forceinline__ float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

}  // namespace lpq::cuda
