// Arithmetic on two 16-bit floats in a word, f16 or bf16 (BF), each rounded once; conversions; approximations of fp32.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lpq::cuda {

template <bool BF>
__device__ __forceinline__ uint32_t add_x2(uint32_t a, uint32_t b) {
  uint32_t c;
  if (BF) asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <bool BF>
__device__ __forceinline__ uint32_t mul_x2(uint32_t a, uint32_t b) {
  uint32_t c;
  if (BF) asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
template <bool BF>
__device__ __forceinline__ uint32_t fma_x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  if (BF) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// a * b + c; of b and c half 0 or 1 counts for both, or each its own (-1).
template <bool BF, int OfB, int OfC>
__device__ __forceinline__ uint32_t fma_x2_halves(uint32_t a, uint32_t b, uint32_t c) {
#define LPQ_HALF_OF(h) "mov.b32 {l, u}, %" h ";\n"
#define LPQ_FMA_OF(type, take_b, take_c)                                                                 \
  asm("{\n.reg .b16 l, u;\n.reg .b32 b, c;\n" LPQ_HALF_OF("2") "mov.b32 b, {" take_b "};\n" LPQ_HALF_OF( \
          "3") "mov.b32 c, {" take_c "};\nfma.rn." type " %0, %1, b, c;\n}"                              \
      : "=r"(r)                                                                                          \
      : "r"(a), "r"(b), "r"(c))
#define LPQ_FMA_C(type, take_b)                                  \
  if constexpr (OfC < 0) LPQ_FMA_OF(type, take_b, "l, u");       \
  else if constexpr (OfC == 0) LPQ_FMA_OF(type, take_b, "l, l"); \
  else LPQ_FMA_OF(type, take_b, "u, u")
#define LPQ_FMA_B(type)            \
  if constexpr (OfB < 0) {         \
    LPQ_FMA_C(type, "l, u");       \
  } else if constexpr (OfB == 0) { \
    LPQ_FMA_C(type, "l, l");       \
  } else {                         \
    LPQ_FMA_C(type, "u, u");       \
  }
  uint32_t r;
  if constexpr (BF) {
    LPQ_FMA_B("bf16x2")
  } else {
    LPQ_FMA_B("f16x2")
  }
#undef LPQ_FMA_B
#undef LPQ_FMA_C
#undef LPQ_FMA_OF
#undef LPQ_HALF_OF
  return r;
}
// The lesser of each half; NaN where either is.
__device__ __forceinline__ uint32_t min_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// The greater of each half; NaN where either is.
__device__ __forceinline__ uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Two numbers as a pair, the first in the lower half.
template <bool BF>
__device__ __forceinline__ uint32_t cvt_x2(float low, float high) {
  uint32_t d;
  if (BF) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
// Either half of a word, in both halves.
__device__ __forceinline__ uint32_t lower_twice(uint32_t word) { return __byte_perm(word, 0, 0x1010); }
__device__ __forceinline__ uint32_t upper_twice(uint32_t word) { return __byte_perm(word, 0, 0x3232); }

// 2^x to 2^-22 of itself; 0 for -infinity.
__device__ __forceinline__ float ex2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// 1 / x to one unit of the last place; subnormal numbers are 0.
__device__ __forceinline__ float rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace lpq::cuda
