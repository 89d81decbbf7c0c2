// Rounding to a quantized type's grid on the device: the rule of cpu/quant/grid.h, operation for operation, so that
// codes agree with the CPU's bit for bit. Kernels are compiled with -fmad=false; the division below is IEEE's.
//
// A GridSpec is computed on the host from the type and passed to kernels by value.
#pragma once
#include <cstdint>

#include "lpq/quant_type.h"

namespace lpq::cuda {

struct GridSpec {
  int is_float;
  int bits;
  uint32_t mask, sign;  // all code bits; the sign bit of signed types, 0 for unsigned ones
  float low, high;      // least and largest value
  int shift;            // floats: 23 - mantissa bits
  uint32_t least_power, lift, rebias;
  float quantum_base;  // as_float(least_power + lift)
};

#if !defined(__CUDACC__)
inline GridSpec grid_spec(const QuantType& type) {
  GridSpec s{};
  s.is_float = type.kind == QuantType::Kind::floating;
  s.bits = type.bits;
  s.mask = (1u << type.bits) - 1u;
  s.sign = s.is_float || type.is_signed ? 1u << (type.bits - 1) : 0u;
  s.low = type.min_value();
  s.high = type.max_value();
  if (s.is_float) {
    s.shift = 23 - type.mantissa;
    s.least_power = static_cast<uint32_t>(128 - type.bias) << 23;
    s.lift = static_cast<uint32_t>(23 - type.mantissa) << 23;
    s.rebias = static_cast<uint32_t>(127 - type.bias) << type.mantissa;
    s.quantum_base = __builtin_bit_cast(float, s.least_power + s.lift);
  }
  return s;
}
#else

struct GridStep {
  float scale, zero;
  float part, whole;  // integers: zero = whole + part, 0 <= part < 1
  float low, high;    // bounds of x + part
};

template <bool kFloat>
struct DeviceGrid {
  GridSpec s;
  __device__ explicit DeviceGrid(const GridSpec& spec) : s(spec) {}

  __device__ __forceinline__ GridStep step(float scale, float zero) const {
    GridStep t{scale, zero, 0, 0, 0, 0};
    if constexpr (!kFloat) {
      t.whole = static_cast<float>(static_cast<int>(zero));
      if (t.whole > zero) t.whole -= 1.0f;
      t.part = zero - t.whole;
      t.low = s.low - t.whole;
      t.high = s.high - t.whole;
    }
    return t;
  }

  // The grid point nearest to x = w / scale; `code`, when asked for, gets its bit pattern.
  __device__ __forceinline__ float nearest_quotient(float quotient, const GridStep& t, uint32_t* code = nullptr) const {
    if constexpr (kFloat) {
      const float x = __fadd_rn(quotient, t.zero);
      const uint32_t raw = __float_as_uint(x);
      float a = __uint_as_float(raw & 0x7fffffffu);
      a = a < s.high ? a : s.high;
      uint32_t power = __float_as_uint(a) & 0x7f800000u;
      power = power > s.least_power ? power : s.least_power;
      const uint32_t lift = power + s.lift;
      const float lifted = __fadd_rn(a, __uint_as_float(lift));
      const uint32_t magnitude = (__float_as_uint(lifted) - lift) + ((power - s.least_power) >> s.shift);
      const uint32_t negative = magnitude != 0 ? raw >> 31 : 0u;
      if (code) *code = magnitude | (negative << (s.bits - 1));
      return __uint_as_float(__float_as_uint(__fsub_rn(lifted, __uint_as_float(lift))) | (negative << 31));
    } else {
      float x = __fadd_rn(quotient, t.part);
      x = x > t.low ? x : t.low;
      x = x < t.high ? x : t.high;
      constexpr float kRint = 12582912.0f;  // 1.5 * 2^23
      const float value = __fadd_rn(__fsub_rn(__fadd_rn(x, kRint), kRint), t.whole);
      if (code) *code = static_cast<uint32_t>(static_cast<int>(value)) & s.mask;
      return value;
    }
  }
  __device__ __forceinline__ float nearest(float w, const GridStep& t, uint32_t* code = nullptr) const {
    return nearest_quotient(__fdiv_rn(w, t.scale), t, code);
  }

  __device__ __forceinline__ float value(uint32_t code) const {
    if constexpr (kFloat) {
      const uint32_t magnitude = code & (s.sign - 1u);
      const float small = __fsub_rn(__uint_as_float(magnitude + __float_as_uint(s.quantum_base)), s.quantum_base);
      const float normal = __uint_as_float((magnitude + s.rebias) << s.shift);
      const uint32_t bits = __float_as_uint((magnitude >> (23 - s.shift)) == 0 ? small : normal);
      return __uint_as_float(bits | ((code & s.sign) != 0 ? 0x80000000u : 0u));
    } else {
      return static_cast<float>(static_cast<int>((code & s.mask) ^ s.sign) - static_cast<int>(s.sign));
    }
  }
};

#endif
}  // namespace lpq::cuda
