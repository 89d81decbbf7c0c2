// exp by one polynomial, the same operations for every instruction set (libm's may differ between machines and between
// its own variants). Plain C++ so that compilers vectorise loops over it. Static: see cpu/linalg/kernels_common.h.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace lpq {
namespace {

// e^x, relative error below 1.5 * 2^-23 where the result is normal; gradual underflow, +-inf and NaN as usual.
// x = n ln 2 + r, |r| <= ln(2)/2; the Taylor series of e^r to r^7 leaves r^8/8! < 5.2e-9.
[[maybe_unused, gnu::always_inline]] inline float exp_f32(float x) {
  x = x > 89.0f ? 89.0f : x;      // overflows already
  x = x < -104.0f ? -104.0f : x;  // rounds to 0 already
  constexpr float magic = 0x1.8p23f;
  const float t = std::fma(x, 0x1.715476p0f, magic);  // its low bits hold round(x / ln 2)
  const float n = t - magic;
  float r = std::fma(n, -0x1.62e400p-1f, x);  // ln 2 in two parts; the first has 9 trailing zeros: n times it is exact
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 1.0f / 5040;
  p = std::fma(p, r, 1.0f / 720);
  p = std::fma(p, r, 1.0f / 120);
  p = std::fma(p, r, 1.0f / 24);
  p = std::fma(p, r, 1.0f / 6);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const int32_t power = static_cast<int32_t>(std::bit_cast<uint32_t>(t) - std::bit_cast<uint32_t>(magic));
  const int32_t half = power >> 1;  // 2^n in two factors: the product may leave the range of normals at the end only
  const float a = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float b = std::bit_cast<float>(static_cast<uint32_t>(power - half + 127) << 23);
  return p * a * b;
}

// e^x in f64 for x <= 0 (the tail of a softmax), relative error below 4 * 2^-53; 0 below -708.
[[maybe_unused, gnu::always_inline]] inline double exp_f64(double x) {
  const bool tiny = x < -708.0;
  x = tiny ? -708.0 : x;
  constexpr double magic = 0x1.8p52;
  const double t = std::fma(x, 0x1.71547652b82fep0, magic);
  const double n = t - magic;
  double r = std::fma(n, -0x1.62e42fefa3800p-1, x);  // 11 trailing zeros: exact for |n| < 2^11
  r = std::fma(n, -0x1.ef35793c76730p-45, r);
  double p = 1.0 / 6227020800.0;  // to r^13 / 13!; r^14 / 14! < 4.2e-18
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  p = std::fma(p, r, 0.5);
  p = std::fma(p, r, 1.0);
  p = std::fma(p, r, 1.0);
  const uint64_t power = std::bit_cast<uint64_t>(t) - std::bit_cast<uint64_t>(magic);
  const double scale = std::bit_cast<double>((power + 1023) << 52);
  return tiny ? 0.0 : p * scale;
}

}  // namespace
}  // namespace lpq
