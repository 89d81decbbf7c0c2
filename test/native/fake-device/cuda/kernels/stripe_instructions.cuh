// native/cuda/kernels/stripe_instructions.cuh for device.h.
#pragma once
#include "device.h"
#include "mma.cuh"

namespace lpq::cuda {

inline float half_to_float(uint32_t bits, bool bf16) { return bf16 ? bf16_to_f32(static_cast<uint16_t>(bits)) : f16_to_f32(static_cast<uint16_t>(bits)); }
inline uint16_t float_to_half(float v, bool bf16) { return bf16 ? f32_to_bf16(v) : f32_to_f16(v); }

inline uint32_t both(uint32_t half) { return half * 0x10001u; }
// Two halves at once, rounded once: a product of two halves and a sum with a third are exact in f64, but for sums of numbers more
// than 2^42 apart, which no weight here is.
template <bool BF, class F>
uint32_t pairwise(uint32_t a, uint32_t b, uint32_t c, const F& f) {
  uint32_t out = 0;
  for (int h = 0; h < 2; ++h) {
    const auto at = [&](uint32_t v) { return static_cast<double>(half_to_float(v >> 16 * h & 0xffff, BF)); };
    const double exact = f(at(a), at(b), at(c));
    // To f32 by rounding to odd, so that the second rounding is the only one.
    float narrow = static_cast<float>(exact);
    if (static_cast<double>(narrow) != exact && std::isfinite(narrow)) {
      uint32_t bits;
      std::memcpy(&bits, &narrow, 4);
      if (std::fabs(static_cast<double>(narrow)) > std::fabs(exact)) --bits;
      bits |= 1;
      std::memcpy(&narrow, &bits, 4);
    }
    out |= static_cast<uint32_t>(float_to_half(narrow, BF)) << 16 * h;
  }
  return out;
}
inline uint32_t sub_f16x2(uint32_t a, uint32_t b) {
  return pairwise<false>(a, b, 0, [](double x, double y, double) { return x - y; });
}
inline uint32_t mul_pair_f16(uint32_t a, uint32_t b) {
  return pairwise<false>(a, b, 0, [](double x, double y, double) { return x * y; });
}
inline uint32_t fma_pair_f16(uint32_t a, uint32_t b, uint32_t c) {
  return pairwise<false>(a, b, c, [](double x, double y, double z) { return x * y + z; });
}
inline uint32_t fma_pair_bf16(uint32_t a, uint32_t b, uint32_t c) {
  return pairwise<true>(a, b, c, [](double x, double y, double z) { return x * y + z; });
}

inline uint2 load_shared8(uint32_t address) {
  fake::inside(address, 8);
  uint2 v;
  std::memcpy(&v, shared + address, 8);
  return v;
}
inline uint32_t load_shared4(uint32_t address) {
  fake::inside(address, 4);
  uint32_t v;
  std::memcpy(&v, shared + address, 4);
  return v;
}
inline uint32_t load_shared2(uint32_t address) {
  fake::inside(address, 2);
  uint16_t v;
  std::memcpy(&v, shared + address, 2);
  return v;
}
inline void copy_weights(uint32_t to, const void* from, unsigned long long) {
  copy_async(to, from, 16);
}
inline void wait_for(const unsigned* counter, unsigned value) {
  if (*counter != value) fake::fail("a block waits for one that comes before it, or for more than there are");
}

}  // namespace lpq::cuda
