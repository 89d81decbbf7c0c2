// 16-bit floats as they lie in memory, f16 or bf16, to fp32 and back, rounded to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lpq::cuda {

__device__ __forceinline__ float to_float(uint32_t bits, bool bf16) {
  return bf16 ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
template <bool BF>
__device__ __forceinline__ float to_float(uint32_t bits) {
  return BF ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ uint16_t from_float(float v, bool bf16) {
  return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
}
template <bool BF>
__device__ __forceinline__ uint16_t from_float(float v) {
  return BF ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
}
// Either half of a word of f16.
__device__ __forceinline__ float low_half(uint32_t v) { return to_float<false>(v & 0xffffu); }
__device__ __forceinline__ float high_half(uint32_t v) { return to_float<false>(v >> 16); }
// A half-word in both halves.
__device__ __forceinline__ uint32_t both(uint32_t half) { return half * 0x10001u; }

}  // namespace lpq::cuda
