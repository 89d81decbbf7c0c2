// CUDA C++'s own words for the host's compiler: vectors, conversions, intrinsics, threads' numbers.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lpq/half.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
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
inline float __bfloat162float(__nv_bfloat16 v) { return lpq::bf16_to_f32(v.bits); }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline float __uint_as_float(uint32_t v) { return std::bit_cast<float>(v); }
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
// |a - b| of each byte.
inline uint32_t __vabsdiffu4(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 8) {
    const int difference = static_cast<int>(a >> i & 255) - static_cast<int>(b >> i & 255);
    out |= static_cast<uint32_t>(difference < 0 ? -difference : difference) << i;
  }
  return out;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (8 * (selector >> 4 * i & 7)) & 255) << 8 * i;
  return out;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* to, const T& v) {
  *to = v;
}

template <class T>
void __stcs(T* to, const T& v) {
  *to = v;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << (by & 31)) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (by & 31));
}
// a + b of each byte.
inline uint32_t __vadd4(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int at = 0; at < 32; at += 8) out |= ((a >> at) + (b >> at) & 255u) << at;
  return out;
}

struct Place {
  unsigned x = 0;
};
extern Place threadIdx, blockIdx, gridDim, blockDim;
void __syncthreads();
inline void __threadfence() {}
unsigned atomicAdd(unsigned* to, unsigned v);
