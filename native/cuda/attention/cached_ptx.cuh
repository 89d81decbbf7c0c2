// Conversions to and from either 16-bit float, by name, so that the host can play them, too.
#pragma once
#include <cuda_bf16.h>

#include "cuda/attention/kv_ptx.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

template <bool BF>
__device__ __forceinline__ float number_of(unsigned short bits) {
  return BF ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : half_of(bits);
}
template <bool BF>
__device__ __forceinline__ unsigned short bits_of(float v) {
  return BF ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : half_bits(v);
}
template <bool BF>
__device__ __forceinline__ uint32_t word_of(float low, float high) {
  if constexpr (!BF) return half2_of(low, high);
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

}  // namespace lpq::cuda
