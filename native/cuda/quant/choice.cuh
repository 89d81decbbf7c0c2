// A group's scale and zero: the rule of cpu/quant/scale.cpp in the same f32 operations.
#pragma once
#include "cuda/quant/number.cuh"
#include "cuda/quant/rtn.h"

namespace lpq::cuda {

constexpr float kLeastNormal = 0x1p-126f, kTopE4m3 = 448.0f, kLeastE4m3 = 0x1p-9f;

struct Choice {
  float ideal, codes, stored, zero;
  int overflow, underflow;
};

__device__ __forceinline__ float ideal_scale(const RtnArgs& a, float min, float max) {
  const float low = fminf(min, 0.0f), high = fmaxf(max, 0.0f), magnitude = -min > max ? -min : max;
  float scale;
  if (a.zero_kind != kZeroConstant) scale = __fdiv_rn(high - low, a.levels);
  else if (!a.grid.is_float && a.grid.sign == 0 && a.constant_zero == 0.0f) scale = __fdiv_rn(high, a.grid.high);
  else if (!a.grid.is_float) scale = __fdiv_rn(magnitude, 0.5f * a.levels);
  else scale = __fdiv_rn(magnitude, a.top);
  if (scale == 0.0f && low == high) return 0.0f;
  return fmaxf(scale, kLeastNormal);
}

__device__ __forceinline__ int ceil_log2(float x) {
  const int e = floor_log2(x);
  return ldexpf(1.0f, e) == x ? e : e + 1;
}

__device__ __forceinline__ Choice choose(const RtnArgs& a, float min, float max, float global) {
  alignas(4) uint8_t room[4];
  const float scale = ideal_scale(a, min, max);
  Choice c{scale, scale, 0.0f, a.constant_zero, 0, 0};
  if (scale == 0.0f) {
    const bool no_zero = !a.grid.is_float && a.constant_zero != floorf(a.constant_zero);
    c.stored = !no_zero ? 1.0f : a.scale_type == kNumberF16 ? 0x1p-14f : a.has_global ? kLeastE4m3 : a.least_scale;
    c.codes = c.stored * global;
  } else if (a.scale_type == kNumberE8m0) {
    const bool covers = a.cover || a.zero_kind != kZeroConstant;
    const float magnitude = -min > max ? -min : max;
    const int e = covers ? ceil_log2(scale) : floor_log2(magnitude) - a.top_power;
    c.stored = c.codes = e8m0_value(::min(::max(e, -127), 127) + 127);
    c.overflow = !isfinite(scale);
  } else if (a.scale_type == kNumberE4m3) {
    const float relative = __fdiv_rn(scale, global);
    c.overflow = !(relative <= 464.0f);  // past the midpoint to the missing 480
    c.stored = fmaxf(write_number(kNumberE4m3, room, 0, relative), kLeastE4m3);
    c.underflow = !a.has_global && c.stored < a.least_scale;
    c.codes = c.stored * global;
  } else {
    c.stored = fmaxf(write_number(a.scale_type, room, 0, scale),
                     a.scale_type == kNumberF16 ? 0x1p-24f : kLeastNormal);  // never 0
    c.overflow = !isfinite(c.stored);
    c.underflow = !c.overflow && c.stored < a.least_scale;
  }
  if (a.zero_kind == kZeroConstant || (c.overflow && !c.underflow)) return c;
  const float offset = __fdiv_rn(-fminf(min, 0.0f), c.codes);
  float zero = a.zero_kind == kZeroWhole ? rintf(offset) + a.grid.low : offset + a.grid.low;
  zero = fminf(fmaxf(zero, a.grid.low), a.grid.high);
  c.zero = write_number(a.zero_type, room, 0, zero);
  return c;
}

// Floats as integers that compare like them; NaN at both ends.
__device__ __forceinline__ int32_t key_of(float x) {
  const int32_t bits = __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

}  // namespace lpq::cuda
