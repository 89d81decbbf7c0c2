// What the programs that play gemm_packed's kernels know of types: a reading of codes that shares nothing with the
// kernels'.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

#include "../../gpu/native/packed_format.h"

struct Type {
  char kind;  // u, i, f
  int bits, exponent;
  std::string name() const {
    return std::string(1, kind) + std::to_string(bits) + (kind == 'f' ? "e" + std::to_string(exponent) : "");
  }
};

inline double number(const Type& t, int code) {
  if (t.kind != 'f') return t.kind == 'i' && code >> (t.bits - 1) ? code - (1 << t.bits) : code;
  const int m = t.bits - 1 - t.exponent, power = code >> m & ((1 << t.exponent) - 1), fraction = code & ((1 << m) - 1);
  const int bias = t.exponent == 1 ? 0 : (1 << (t.exponent - 1)) - 1;
  if (t.bits == 8 && t.exponent == 5 && power == 31) return NAN;
  if (t.bits == 8 && t.exponent == 4 && power == 15 && fraction == 7) return NAN;
  const double size =
      power == 0 ? std::ldexp(fraction, 1 - bias - m) : std::ldexp((1 << m) + fraction, power - bias - m);
  return code >> (t.bits - 1) & 1 ? -size : size;
}

inline uint16_t to16(double v, bool bf) {
  return bf ? lpq::f32_to_bf16(static_cast<float>(v)) : lpq::f32_to_f16(static_cast<float>(v));
}
inline double from16(uint16_t v, bool bf) { return bf ? lpq::bf16_to_f32(v) : lpq::f16_to_f32(v); }
