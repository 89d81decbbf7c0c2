// f16 (IEEE binary16) and bf16 to and from f32, on raw bits. To 16 bits: round to nearest, ties to even; past the
// largest finite value infinity; f16 subnormals kept. A NaN stays a quiet NaN of the same sign with the payload's top
// bits, which is what F16C and AVX-512 do, so that vector code may use those instructions and give the same bytes.
#pragma once
#include <bit>
#include <cstdint>

namespace lpq {

static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u)  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u) |
                                ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  // Subnormal: magnitude * 2^-24, exact in f32.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
}

static inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up
  if (magnitude >= 0x38800000u) {                                              // 2^-14 and up: normal
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
  if (magnitude <= 0x33000000u) return sign;  // 2^-25 and below: a tie with zero goes to zero
  const uint32_t exponent = magnitude >> 23;  // 102 .. 112
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift =
      126u - exponent;  // the value is mantissa * 2^(exponent-150); in units of 2^-24: mantissa >> shift
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t quotient = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  return static_cast<uint16_t>(sign | (quotient + (rest > half || (rest == half && (quotient & 1u)) ? 1u : 0u)));
}

static inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

static inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace lpq
