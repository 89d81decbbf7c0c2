// What a kernel's source takes for granted, for the host's compiler: vectors, conversions, threads' numbers.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lpq/half.h"

#define __device__
#define __host__
#define __forceinline__ inline

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct __half {
  uint16_t bits;
};
struct __half2 {
  uint16_t low, high;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __low2float(__half2 v) { return lpq::f16_to_f32(v.low); }
inline float __high2float(__half2 v) { return lpq::f16_to_f32(v.high); }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline float __half2float(__half v) { return lpq::f16_to_f32(v.bits); }
inline __half __float2half_rn(float v) { return {lpq::f32_to_f16(v)}; }
inline uint16_t __half_as_ushort(__half v) { return v.bits; }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return {lpq::f32_to_bf16(v)}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline float __uint_as_float(uint32_t v) { return std::bit_cast<float>(v); }
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
// |a - b| of each byte.
inline uint32_t __vabsdiffu4(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 8) {
    const int difference = static_cast<int>(a >> i & 255) - static_cast<int>(b >> i & 255);
    out |= static_cast<uint32_t>(difference < 0 ? -difference : difference) << i;
  }
  return out;
}
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
struct alignas(16) int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline int4 __ldcg(const int4* from) { return *from; }
inline void __stcg(int4* to, const int4& v) { *to = v; }
inline float4 __ldcg(const float4* from) { return *from; }
inline void __stcg(float4* to, const float4& v) { *to = v; }
using std::max;
using std::min;

struct Place {
  unsigned x = 0;
};
extern Place threadIdx, blockIdx, gridDim, blockDim;
void __syncthreads();
unsigned atomicAdd(unsigned* to, unsigned v);
