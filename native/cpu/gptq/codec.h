// Rounding to a quantized type inside the solver. A "level" is the decoded code as a float (an integer, or a value of the
// float type); the weight it stands for is (level - zero) * scale.
// Everything hot is always_inline: these functions are compiled for several instruction sets, and a shared out-of-line
// copy could end up being the one for a CPU that this is not.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lpq/exec.h"

namespace lpq::gptq {

// rint without a libm call: exact for |x| < 2^22, and saturating codecs clamp anything larger first.
[[gnu::always_inline]] inline float round_even(float x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23
  return (x + magic) - magic;
}

struct IntCodec {
  float low, high;
  [[gnu::always_inline]] float nearest(float w, float scale, float zero) const {
    float x = w / scale;
    x = x < -1e6f ? -1e6f : x;
    x = x > 1e6f ? 1e6f : x;
    x = round_even(x) + zero;
    x = x < low ? low : x;
    return x > high ? high : x;
  }
};

struct FloatCodec {
  float largest;     // largest finite value
  float min_normal;  // 2^(1 - bias)
  float ulp;         // 2^-mantissa: step between values of the binade [1, 2)
  [[gnu::always_inline]] float nearest(float w, float scale, float zero) const {
    const float x = w / scale + zero;
    float magnitude = std::fabs(x);
    magnitude = magnitude > largest ? largest : magnitude;
    uint32_t bits;
    std::memcpy(&bits, &magnitude, 4);
    bits &= 0x7f800000u;
    float binade;
    std::memcpy(&binade, &bits, 4);
    binade = binade < min_normal ? min_normal : binade;
    const float step = binade * ulp;
    float value = round_even(magnitude / step) * step;  // division by a power of two is exact
    value = value > largest ? largest : value;
    return std::copysign(value, x);
  }
};

struct Codec {
  bool is_float = false;
  IntCodec ints{0, 0};
  FloatCodec floats{0, 0, 0};
  static Codec from(const Params& params) {
    Codec codec;
    const int bits = static_cast<int>(params.integer("bits"));
    codec.is_float = params.text("kind") == "float";
    if (!codec.is_float) {
      const bool is_signed = params.integer("signed") != 0;
      codec.ints.low = is_signed ? -std::ldexp(1.0f, bits - 1) : 0.0f;
      codec.ints.high = is_signed ? std::ldexp(1.0f, bits - 1) - 1 : std::ldexp(1.0f, bits) - 1;
      return codec;
    }
    const int exponent = static_cast<int>(params.integer("exponent")), mantissa = static_cast<int>(params.integer("mantissa"));
    const int bias = static_cast<int>(params.integer("bias"));
    const std::string special = params.text("special");
    // Top binade and top fraction, less what inf and NaN take away.
    const int top = (1 << exponent) - 1 - (special == "ieee" ? 1 : 0);
    int fraction = (1 << mantissa) - 1 - (special == "fn" ? 1 : 0);
    codec.floats.min_normal = std::ldexp(1.0f, 1 - bias);
    codec.floats.ulp = std::ldexp(1.0f, -mantissa);
    codec.floats.largest = top == 0 ? std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa)
                                    : std::ldexp(static_cast<float>((1 << mantissa) + fraction), top - bias - mantissa);
    return codec;
  }
};

}  // namespace lpq::gptq
