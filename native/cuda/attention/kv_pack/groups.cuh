// Scales, zero points and codes of a group of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// A block of tokens on its way to where it is packed: of one head.
struct KvPackBlock {
  const unsigned short* from;  // of the first token
  int row;                     // elements from token to token
  int page, token, head;
};

// Scale and zero of a group; numbers a little below and a little above the scale's reciprocal.
struct KvPackGroup {
  float scale, below, above, zero;
  unsigned short scale_bits, zero_bits;
};

// `range`: the smallest, and the largest with its sign turned, as halves. rcp_approx() errs by 2^-23 of itself and the
// factors below by 2^-24, so that (x - zero) below <= fl32((x - zero) / scale) <= (x - zero) above. Scales among f16's
// subnormals may have been rounded so far down that codes go beyond the largest: these have no codes for certain but 0.
template <int BITS>
__device__ __forceinline__ KvPackGroup pack_group(const KvPackArgs& a, uint32_t range) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float low = low_half(range), high = -high_half(range);
  if (!(fabsf(low) < INFINITY && fabsf(high) < INFINITY)) *a.fault = 1;
  KvPackGroup g;
  g.scale_bits = from_float<false>(__fdiv_rn(high - low, top)), g.zero_bits = static_cast<unsigned short>(range);
  g.scale = to_float<false>(g.scale_bits), g.zero = low;
  const float inverse = g.scale > 0 ? rcp_approx(g.scale) : 0.0f;
  g.below = g.scale_bits < 0x0400 ? 0.0f : inverse * (1 - 0x1p-21f), g.above = inverse * (1 + 0x1p-21f);
  return g;
}
// A smallest of 0 keeps the sign of the first 0 of its group.
template <class F>
__device__ __forceinline__ uint32_t pack_first_zero(uint32_t range, int count, F&& at) {
  if ((range & 0x7fff) != 0) return range;
  for (int i = 0; i < count; ++i)
    if ((at(i) & 0x7fff) == 0) return (range & ~0xffffu) | at(i);
  return range;
}

// Codes are bits of 3 * 2^22 and them: adding that rounds to integers, ties to even.
constexpr float kPackMagic = 12582912.0f;
constexpr uint32_t kPackBits = 0x4b400000u;

// A code for certain, where products with both neighbours of the reciprocal round alike: then so does the quotient
// between them. Else a bit of `unsure`.
__device__ __forceinline__ uint32_t pack_likely(float x, const KvPackGroup& g, uint32_t& unsure) {
  const float over = x - g.zero;
  const uint32_t code = __float_as_uint(__fmaf_rn(over, g.below, kPackMagic));
  unsure |= code ^ __float_as_uint(__fmaf_rn(over, g.above, kPackMagic));
  return code;
}
__device__ __forceinline__ void pack_likely_pair(uint32_t& word, uint32_t x, const KvPackGroup& low,
                                                 const KvPackGroup& high, int place, uint32_t& unsure) {
  const uint32_t power = 1u << place;
  word += pack_likely(low_half(x), low, unsure) * power;
  word += pack_likely(high_half(x), high, unsure) * (power << 16);
}
// What `count` codes in each half of a word are too large by, from place `first` on.
template <int BITS>
__device__ __forceinline__ constexpr uint32_t pack_excess(int first, int count) {
  uint32_t excess = 0;
  for (int j = 0; j < count; ++j) excess += (kPackBits << (first + BITS * j)) + (kPackBits << (first + BITS * j + 16));
  return excess;
}

// (x - zero) / scale to the nearest integer, ties to even, at most top. The product with `above` rounds to that or to
// one more: half a unit below, h times scale decides, which is exact (9 bits by 11). The quotient in fp32 is h only
// where both are alike, since two numbers of fp32 differ by more than half a unit of the last place.
template <int BITS>
__device__ __forceinline__ uint32_t pack_exact(float x, const KvPackGroup& g) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float over = x - g.zero, most = fminf(__fmaf_rn(over, g.above, kPackMagic) - kPackMagic, top + 1),
              half = most - 0.5f, at = half * g.scale;
  const float code = over > at ? most : over < at ? most - 1 : half + kPackMagic - kPackMagic;
  return __float_as_uint(fminf(code, top) + kPackMagic) - kPackBits;
}
template <int BITS>
__device__ __forceinline__ uint32_t pack_exact_pair(uint32_t x, const KvPackGroup& low, const KvPackGroup& high) {
  return pack_exact<BITS>(low_half(x), low) | pack_exact<BITS>(high_half(x), high) << 16;
}

// What a pair of likely codes is too small by, where they are unsure. It is read again: what led to the likely codes
// would otherwise be kept in registers for what is seldom.
template <int BITS>
__device__ __forceinline__ uint32_t pack_correction(const unsigned short* from, const KvPackGroup& low,
                                                    const KvPackGroup& high) {
  const uint32_t x = *reinterpret_cast<const volatile uint32_t*>(from);
  uint32_t likely = 0 - pack_excess<BITS>(0, 1), unsure = 0;
  pack_likely_pair(likely, x, low, high, 0, unsure);
  return pack_exact_pair<BITS>(x, low, high) - likely;
}

// Smallest and turned largest of the two halves of x each, of what was found so far.
struct KvRange2 {
  uint32_t low = 0x7c007c00u, high = 0x7c007c00u;
  __device__ __forceinline__ void add(uint32_t x) {
    low = min_nan_f16x2(low, x), high = min_nan_f16x2(high, x ^ 0x80008000u);
  }
  __device__ __forceinline__ uint32_t of_low() const { return (low & 0xffffu) | high << 16; }
  __device__ __forceinline__ uint32_t of_high() const { return low >> 16 | (high & 0xffff0000u); }
  __device__ __forceinline__ uint32_t of_both() const { return min_nan_f16x2(of_low(), of_high()); }
};

}  // namespace lpq::cuda
