// Element types of kernels: f32, f16 and bf16 in memory, fp32 in registers; single elements and groups of four.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace lpq {

using f16 = __half;
using bf16 = __nv_bfloat16;
using index_t = long long;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(f16 x) { return __half2float(x); }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// Four elements that start at a multiple of four of an aligned tensor.
__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
template <class T>
__device__ __forceinline__ float4 load4(const T* p) {
  union {
    uint2 raw;
    T item[4];
  } bits;
  bits.raw = *reinterpret_cast<const uint2*>(p);
  return make_float4(widen(bits.item[0]), widen(bits.item[1]), widen(bits.item[2]), widen(bits.item[3]));
}
__device__ __forceinline__ void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
template <class T>
__device__ __forceinline__ void store4(T* p, float4 v) {
  union {
    uint2 raw;
    T item[4];
  } bits;
  bits.item[0] = narrow<T>(v.x);
  bits.item[1] = narrow<T>(v.y);
  bits.item[2] = narrow<T>(v.z);
  bits.item[3] = narrow<T>(v.w);
  *reinterpret_cast<uint2*>(p) = bits.raw;
}

// Element i of a small tensor whose type is known at run time: 0 f32, 1 f16, 2 bf16 (launch.h: type_index).
__device__ __forceinline__ float load_any(const void* p, int type, index_t i) {
  if (type == 0) return static_cast<const float*>(p)[i];
  if (type == 1) return __half2float(static_cast<const f16*>(p)[i]);
  return __bfloat162float(static_cast<const bf16*>(p)[i]);
}

// Sums over a warp: every lane gets the same value, made in the same order.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

}  // namespace lpq

// Names of instantiations, as launch.h spells them.
#define LPQ_EACH_TYPE(X) X(float, f32) X(::lpq::f16, f16) X(::lpq::bf16, bf16)
