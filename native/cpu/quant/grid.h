// Rounding a weight to the nearest point of a quantized type's grid, cheap enough for the inside of a solver.
//
//   with_grid(type, [&](const auto& grid) {            // one instantiation for integers, one for floats
//     const auto step = grid.step(scale, zero);        // once a group
//     const Rounded r = grid.nearest(w, step);         // r.code: bit pattern; r.value: what it decodes to
//     const float back = (r.value - zero) * scale;
//   });
//
// The rule. x = w / scale, an f32 division. Integers: code = clamp(rint(x) + zero) for a whole zero; a zero z with a
// fraction splits into floor(z) + f and gives clamp(rint(x + f) + floor(z)). Floats: the representable number nearest
// to x + zero. Ties go to the even code, magnitudes beyond the largest saturate, and zero has one code, +0.
// NaN and infinity give some code; look for them before. Only IEEE f32 operations and the default rounding mode are
// used, none that fuses, so that scalar code and every instruction set agree bit for bit.
//
// Everything is forced inline: files compiled for different instruction sets include this header, and an out-of-line
// copy of one of them must not be linked into the others.
#pragma once
#include <cstdint>

#include "lpq/quant_type.h"

#define LPQ_FORCE_INLINE inline __attribute__((always_inline))

namespace lpq {

LPQ_FORCE_INLINE float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
LPQ_FORCE_INLINE uint32_t as_bits(float value) { return __builtin_bit_cast(uint32_t, value); }

struct Rounded {
  uint32_t code;  // bit pattern of the type
  float value;    // decode(code), before zero and scale
};

class IntGrid {
 public:
  // A group's scale and zero, with what can be computed once.
  struct Step {
    float scale, zero;
    float part, whole;  // zero = whole + part, 0 <= part < 1
    float low, high;    // bounds of x + part
  };

  explicit IntGrid(const QuantType& type)
      : bits_(type.bits),
        mask_((1u << type.bits) - 1u),
        sign_(type.is_signed ? 1u << (type.bits - 1) : 0u),
        min_(type.min_value()),
        max_(type.max_value()) {}

  // scale > 0 and finite; |zero| < 2^20.
  LPQ_FORCE_INLINE Step step(float scale, float zero) const {
    float whole = static_cast<float>(static_cast<int32_t>(zero));
    whole -= whole > zero ? 1.0f : 0.0f;
    return {scale, zero, zero - whole, whole, min_ - whole, max_ - whole};
  }

  LPQ_FORCE_INLINE Rounded nearest(float w, const Step& s) const {
    float x = w / s.scale + s.part;
    x = x > s.low ? x : s.low;  // the bounds are whole: clamping first changes nothing; NaN goes to the lower one
    x = x < s.high ? x : s.high;
    constexpr float kRint = 0x1.8p23f;  // adding it leaves no fraction bits: rint for |x| < 2^22
    const float value = ((x + kRint) - kRint) + s.whole;
    return {static_cast<uint32_t>(static_cast<int32_t>(value)) & mask_, value};
  }

  LPQ_FORCE_INLINE uint32_t quantize(float w, float scale, float zero) const {
    return nearest(w, step(scale, zero)).code;
  }

  // The number that a code stands for.
  LPQ_FORCE_INLINE float value(uint32_t code) const {
    return static_cast<float>(static_cast<int32_t>((code & mask_) ^ sign_) - static_cast<int32_t>(sign_));
  }
  LPQ_FORCE_INLINE float dequantize(uint32_t code, const Step& s) const { return (value(code) - s.zero) * s.scale; }

  int bits() const { return bits_; }
  float min_value() const { return min_; }
  float max_value() const { return max_; }

 private:
  int bits_;
  uint32_t mask_, sign_;
  float min_, max_;
};

class FloatGrid {
 public:
  struct Step {
    float scale, zero;
  };

  explicit FloatGrid(const QuantType& type)
      : bits_(type.bits),
        shift_(23 - type.mantissa),
        least_power_(static_cast<uint32_t>(127 + 1 - type.bias) << 23),
        lift_(static_cast<uint32_t>(23 - type.mantissa) << 23),
        rebias_(static_cast<uint32_t>(127 - type.bias) << type.mantissa),
        quanta_(as_float(least_power_ + lift_)),
        max_code_(type.max_code()),
        max_(type.max_value()),
        sign_(1u << (type.bits - 1)) {}

  LPQ_FORCE_INLINE Step step(float scale, float zero) const { return {scale, zero}; }

  LPQ_FORCE_INLINE Rounded nearest(float w, const Step& s) const {
    const float x = w / s.scale + s.zero;
    const uint32_t raw = as_bits(x);
    float a = as_float(raw & 0x7fffffffu);
    a = a < max_ ? a : max_;  // saturates, NaN too
    uint32_t power = as_bits(a) & 0x7f800000u;
    power = power > least_power_ ? power : least_power_;  // subnormals have the quantum of the least normal binade
    // 2^23 quanta of a's binade: adding them rounds to whole quanta, whose number is left in the low bits.
    const uint32_t lift = power + lift_;
    const float lifted = a + as_float(lift);
    const uint32_t code = (as_bits(lifted) - lift) + ((power - least_power_) >> shift_);
    const uint32_t negative = code != 0 ? raw >> 31 : 0u;
    return {code | (negative << (bits_ - 1)), as_float(as_bits(lifted - as_float(lift)) | (negative << 31))};
  }

  LPQ_FORCE_INLINE uint32_t quantize(float w, float scale, float zero) const {
    return nearest(w, step(scale, zero)).code;
  }

  // The number that a code stands for. Patterns that are not numbers (f8e4m3, f8e5m2) read as if they were.
  LPQ_FORCE_INLINE float value(uint32_t code) const {
    const uint32_t magnitude = code & (sign_ - 1u);
    const float small = as_float(magnitude + as_bits(quanta_)) - quanta_;
    const float normal = as_float((magnitude + rebias_) << shift_);
    const uint32_t bits = as_bits((magnitude >> (23 - shift_)) == 0 ? small : normal);
    return as_float(bits | ((code & sign_) != 0 ? 0x80000000u : 0u));
  }
  LPQ_FORCE_INLINE float dequantize(uint32_t code, const Step& s) const { return (value(code) - s.zero) * s.scale; }

  int bits() const { return bits_; }
  float min_value() const { return -max_; }
  float max_value() const { return max_; }

 private:
  int bits_, shift_;
  uint32_t least_power_, lift_, rebias_;
  float quanta_;
  uint32_t max_code_;
  float max_;
  uint32_t sign_;
};

// Calls body(grid) with the grid of `type`.
template <class Body>
LPQ_FORCE_INLINE decltype(auto) with_grid(const QuantType& type, Body&& body) {
  if (type.kind == QuantType::Kind::integer) return body(IntGrid(type));
  return body(FloatGrid(type));
}

}  // namespace lpq
