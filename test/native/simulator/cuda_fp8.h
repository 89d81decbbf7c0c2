// What kernels use of CUDA's header of that name, simulated: e4m3 of a float.
#pragma once
#include <cmath>
#include <cstdint>

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

// |v| <= 448, to nearest even: multiples of 2^(e - 3) from 2^-6 on, of 2^-9 below.
inline uint8_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t, __nv_fp8_interpretation_t) {
  const float size = std::fabs(v);
  const uint8_t sign = std::signbit(v) ? 0x80 : 0;
  const int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
  const int count = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // 8 to 16; below 8 subnormal
  return static_cast<uint8_t>(sign | ((exponent + 6) * 8 + count));
}
