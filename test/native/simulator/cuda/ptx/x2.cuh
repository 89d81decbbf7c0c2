// native/cuda/ptx/x2.cuh, simulated.
#pragma once
#include "numbers.h"

namespace lpq::cuda {

template <bool BF>
uint32_t add_x2(uint32_t a, uint32_t b) {
  return simt::each_half<BF>(a, b, 0, [](double x, double y, double) { return x + y; });
}
inline uint32_t sub_f16x2(uint32_t a, uint32_t b) {
  return simt::each_half<false>(a, b, 0, [](double x, double y, double) { return x - y; });
}
template <bool BF>
uint32_t mul_x2(uint32_t a, uint32_t b) {
  return simt::each_half<BF>(a, b, 0, [](double x, double y, double) { return x * y; });
}
template <bool BF>
uint32_t fma_x2(uint32_t a, uint32_t b, uint32_t c) {
  return simt::each_half<BF>(a, b, c, [](double x, double y, double z) { return x * y + z; });
}
template <bool BF, int OfB, int OfC>
uint32_t fma_x2_halves(uint32_t a, uint32_t b, uint32_t c) {
  const auto taken = [](uint32_t word, int half) { return half < 0 ? word : (word >> 16 * half & 0xffffu) * 0x10001u; };
  return fma_x2<BF>(a, taken(b, OfB), taken(c, OfC));
}
inline uint32_t min_nan_f16x2(uint32_t a, uint32_t b) {
  return simt::each_half<false>(a, b, 0, [](double x, double y, double) {
    return x != x ? x : y != y ? y : x < y || (x == y && std::signbit(x)) ? x : y;
  });
}
inline uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
  return simt::each_half<false>(a, b, 0, [](double x, double y, double) {
    return x != x ? x : y != y ? y : x > y || (x == y && std::signbit(y)) ? x : y;
  });
}
template <bool BF>
uint32_t cvt_x2(float low, float high) {
  return BF ? lpq::f32_to_bf16(low) | static_cast<uint32_t>(lpq::f32_to_bf16(high)) << 16
            : lpq::f32_to_f16(low) | static_cast<uint32_t>(lpq::f32_to_f16(high)) << 16;
}
inline uint32_t lower_twice(uint32_t word) { return (word & 0xffff) | word << 16; }
inline uint32_t upper_twice(uint32_t word) { return word >> 16 | (word & 0xffff0000u); }
inline float ex2_approx(float x) { return std::exp2(x); }
inline float rcp_approx(float x) { return 1 / x; }

}  // namespace lpq::cuda
