// fp16 arithmetic by integers: every result is the exact value rounded once (to nearest, ties to even), as the GPU's
// hsub, hmul, hfma and cvt.rn do. Slow and plain on purpose.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "lpq/tensor.h"

namespace lpq::verify {

using Wide = __int128;

inline bool half_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

// h * 2^24, exact: every finite fp16 is a multiple of 2^-24.
inline int64_t half_fixed(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int64_t fraction = h & 1023;
  const int64_t magnitude = exponent == 0 ? fraction : (1024 + fraction) << (exponent - 1);
  return (h & 0x8000) ? -magnitude : magnitude;
}

inline float half_value(uint16_t h) {
  if (half_finite(h)) return h == 0x8000 ? -0.0f : static_cast<float>(half_fixed(h)) * 0x1p-24f;  // 11 bits: exact
  // The NaN payload moves along, so that two different NaNs stay different.
  return std::bit_cast<float>((static_cast<uint32_t>(h & 0x8000) << 16) | 0x7f800000u |
                              (static_cast<uint32_t>(h & 1023) << 13));
}

// value * 2^-scale rounded to fp16; `negative` decides the sign of zero.
inline uint16_t half_round(Wide value, int scale, bool negative) {
  if (value != 0) negative = value < 0;
  const uint16_t sign = negative ? 0x8000 : 0;
  unsigned __int128 magnitude = static_cast<unsigned __int128>(value < 0 ? -value : value);
  if (magnitude == 0) return sign;
  const uint64_t upper = static_cast<uint64_t>(magnitude >> 64);
  const int top = upper ? 127 - std::countl_zero(upper) : 63 - std::countl_zero(static_cast<uint64_t>(magnitude));
  const int exponent = top - scale;
  if (exponent > 15) return sign | 0x7c00;
  const bool subnormal = exponent < -14;
  const int shift = scale + (subnormal ? -24 : exponent - 10);  // bits below one unit in the last place
  uint32_t units;
  if (shift > 126) return sign;
  if (shift <= 0) {
    units = static_cast<uint32_t>(magnitude << -shift);
  } else {
    const unsigned __int128 one = 1, rest = magnitude & ((one << shift) - 1), tie = one << (shift - 1);
    units = static_cast<uint32_t>(magnitude >> shift);
    if (rest > tie || (rest == tie && (units & 1))) ++units;
  }
  // A carry out of the fraction walks into the exponent by itself, up to infinity.
  return static_cast<uint16_t>(sign | (subnormal ? units : ((exponent + 15) << 10) + (units - 1024)));
}

inline uint16_t half_special(double r) {
  if (std::isnan(r)) return 0x7fff;
  return static_cast<uint16_t>((std::signbit(r) ? 0x8000 : 0) | 0x7c00);
}

inline uint16_t half_sub(uint16_t a, uint16_t b) {
  if (!half_finite(a) || !half_finite(b)) return half_special(double(half_value(a)) - half_value(b));
  return half_round(Wide(half_fixed(a)) - half_fixed(b), 24, a == 0x8000 && b == 0);
}

inline uint16_t half_mul(uint16_t a, uint16_t b) {
  if (!half_finite(a) || !half_finite(b)) return half_special(double(half_value(a)) * half_value(b));
  return half_round(Wide(half_fixed(a)) * half_fixed(b), 48, ((a ^ b) & 0x8000) != 0);
}

inline uint16_t half_fma(uint16_t a, uint16_t b, uint16_t c) {
  if (!half_finite(a) || !half_finite(b) || !half_finite(c))
    return half_special(double(half_value(a)) * half_value(b) + half_value(c));
  const Wide product = Wide(half_fixed(a)) * half_fixed(b);
  return half_round(product + (Wide(half_fixed(c)) << 24), 48, product == 0 && ((a ^ b) & 0x8000) && c == 0x8000);
}

// cvt.rn.f16.f32
inline uint16_t half_from_float(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const int exponent = (u >> 23) & 255;
  const Wide fraction = u & 0x7fffff;
  const bool negative = (u >> 31) != 0;
  if (exponent == 255) return half_special(f);
  const Wide magnitude = exponent == 0 ? fraction : fraction + 0x800000;
  return half_round(negative ? -magnitude : magnitude, exponent == 0 ? 149 : 150 - exponent, negative);
}

inline float bfloat_value(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

inline uint16_t bfloat_from_float(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if (std::isnan(f)) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// Element i of a tensor in f32, f16 or bf16, and its bits.
inline float float_at(const Tensor& x, int64_t i) {
  if (x.dtype == DType::f32) return x.data<float>()[i];
  const uint16_t bits = x.data<uint16_t>()[i];
  return x.dtype == DType::f16 ? half_value(bits) : bfloat_value(bits);
}
inline uint32_t bits_at(const Tensor& x, int64_t i) {
  return x.dtype == DType::f32 ? std::bit_cast<uint32_t>(x.data<float>()[i]) : x.data<uint16_t>()[i];
}
// Rounds once.
inline void store_float(const Tensor& x, int64_t i, float value) {
  if (x.dtype == DType::f32) x.data<float>()[i] = value;
  else x.data<uint16_t>()[i] = x.dtype == DType::f16 ? half_from_float(value) : bfloat_from_float(value);
}

}  // namespace lpq::verify
