// The 36 quantized types as data: what typeParams() of src/core/quant-type.ts sends with a call.
#pragma once
#include <cstdint>

namespace lpq {

class Arguments;

struct QuantType {
  enum class Kind : uint8_t { integer, floating };
  // Which patterns of a float are not numbers: none; fn, the all-ones magnitude (f8e4m3); ieee, the top exponent
  // (f8e5m2).
  enum class Special : uint8_t { none, fn, ieee };

  Kind kind = Kind::integer;
  int bits = 0;  // 1 .. 8
  bool is_signed = false;
  int exponent = 0, mantissa = 0, bias = 0;  // floats only: 1 + exponent + mantissa == bits
  Special special = Special::none;

  // Reads kind, bits, signed, exponent, mantissa, bias and special. Throws Failure("LPQ_NATIVE_PARAM").
  static QuantType from(Arguments& a);

  uint32_t codes() const { return 1u << bits; }
  // The number that a bit pattern stands for (exact in f32); NaN for a pattern that is no finite number.
  float decode(uint32_t code) const;
  // Largest finite magnitude as a pattern (floats), or the largest value as one (integers).
  uint32_t max_code() const;
  float max_value() const { return decode(max_code()); }
  float min_value() const;
  // Floats: where a scale rule puts the largest weight of a group, the largest value halved until it is at most 512.
  // With 5 and 6 exponent bits max|w| / max_value() would be below any f16, and the codes of the largest weights beyond
  // it. Floats look the same at every power of two, so these types leave the top of their range unused and still hold
  // weights down to 2^-22 of the largest at full precision.
  float top() const;
};

}  // namespace lpq
