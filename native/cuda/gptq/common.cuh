// Small things that the solver's kernels share.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lpq::cuda {

// 2^e, clamped to the normal floats.
__device__ __forceinline__ float power_of_two(int e) {
  e = e < -126 ? -126 : e > 127 ? 127 : e;
  return __int_as_float((e + 127) << 23);
}

// floor(log2 x) for finite x > 0; subnormals count as 2^-126.
__device__ __forceinline__ int exponent_of(float x) {
  const int e = static_cast<int>((__float_as_uint(x) >> 23) & 255u);
  return (e == 0 ? 1 : e) - 127;
}

// x as one or two 16-bit floats, hi + lo = x to twice the precision. Halves saturate: infinities would poison a row.
__device__ __forceinline__ __half saturated_half(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}
__device__ __forceinline__ void split_half(float x, __half& hi, __half& lo) {
  hi = saturated_half(x);
  lo = saturated_half(__fsub_rn(x, __half2float(hi)));
}
__device__ __forceinline__ void split_bfloat(float x, __nv_bfloat16& hi, __nv_bfloat16& lo) {
  hi = __float2bfloat16_rn(x);
  lo = __float2bfloat16_rn(__fsub_rn(x, __bfloat162float(hi)));
}

__device__ __forceinline__ uint32_t pack_half2(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}
__device__ __forceinline__ float2 unpack_half2(uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

}  // namespace lpq::cuda
