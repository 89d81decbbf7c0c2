// The numbers of a group of keys or values (formats/kv/spec.md, Numbers).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lpq/failure.h"
#include "lpq/half.h"

namespace lpq::kv {

// A cache holds f16: what does not fit there is no key and no value. Throws LPQ_NATIVE_NUMERICS.
inline float finite_half(uint16_t bits) {
  const float v = f16_to_f32(bits);
  if (!std::isfinite(v)) throw Failure("LPQ_NATIVE_NUMERICS", "a key or value is NaN, infinite or beyond f16");
  return v;
}

struct Group {
  uint16_t scale, zero;
  float low, step, top;

  // high - low is exact or rounded once in fp32; the stored scale divides, so that both directions use one number.
  Group(float low_, float high, float top_)
      : scale(f32_to_f16((high - low_) / top_)),
        zero(f32_to_f16(low_)),
        low(low_),
        step(f16_to_f32(scale)),
        top(top_) {}
  // Nearest, ties to even.
  uint8_t code(float v) const {
    const float above = step > 0 ? std::min((v - low) / step, top) : 0.0f;
    return static_cast<uint8_t>((above + 12582912.0f) - 12582912.0f);
  }
};

}  // namespace lpq::kv
