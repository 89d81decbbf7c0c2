// Numbers of registers, for the simulated tensor cores.
#pragma once
#include <vector>

#include "cuda_words.h"

namespace simt {

// What 16 bits mean, f16 or bf16.
template <bool BF>
double number16(uint32_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> t(65536);
    for (uint32_t i = 0; i < 65536; ++i)
      t[i] = BF ? lpq::bf16_to_f32(static_cast<uint16_t>(i)) : lpq::f16_to_f32(static_cast<uint16_t>(i));
    return t;
  }();
  return table[bits & 0xffff];
}
inline double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
  return code & 128 ? -size : size;
}
// Halves one by one: f(a, b, c) in double precision, rounded once (exactly: a product of two halves and a sum fit, but
// for sums of numbers more than 2^42 apart, which no weight here is).
template <bool BF, class F>
uint32_t each_half(uint32_t a, uint32_t b, uint32_t c, const F& f) {
  uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const int at = 16 * half;
    const double exact = f(number16<BF>(a >> at), number16<BF>(b >> at), number16<BF>(c >> at));
    // To odd in f32 first, so that rounding twice is rounding once.
    float near = static_cast<float>(exact);
    if (std::isfinite(near) && static_cast<double>(near) != exact) {
      const float toward_zero =
          std::fabs(static_cast<double>(near)) > std::fabs(exact) ? std::nextafter(near, 0.0f) : near;
      near = std::bit_cast<float>(std::bit_cast<uint32_t>(toward_zero) | 1u);
    }
    result |= static_cast<uint32_t>(BF ? lpq::f32_to_bf16(near) : lpq::f32_to_f16(near)) << at;
  }
  return result;
}

}  // namespace simt
