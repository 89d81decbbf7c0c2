// Scales, zero points and codes of a group of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// A block of tokens on its way to where it is packed: of one head. PADDED: the head has fewer dims than are stored,
// zeros behind; others have code of their own, which asks for no dim whether it is there.
template <bool PADDED>
struct KvPackBlock {
  const unsigned short* from;  // of the first token
  int row, dims;               // elements from token to token; of a head
  int page, token, head;
  __device__ __forceinline__ const unsigned short* at(int of, int dim) const {
    return from + static_cast<long long>(of) * row + dim;
  }
  __device__ __forceinline__ bool has(int dim) const { return !PADDED || dim < dims; }
  __device__ __forceinline__ uint32_t half(int of, int dim) const { return has(dim) ? *at(of, dim) : 0u; }
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
#pragma unroll 1
  for (int i = 0; i < count; ++i)
    if ((at(i) & 0x7fff) == 0) return (range & ~0xffffu) | at(i);
  return range;
}

// Codes are bits of 3 * 2^22 and them: adding that rounds to integers, ties to even.
constexpr float kPackMagic = 12582912.0f;
constexpr uint32_t kPackBits = 0x4b400000u;

// A code for certain, where products with both neighbours of the reciprocal round alike: then so does the quotient
// between them. Else a bit of `unsure`.
template <class Group>
__device__ __forceinline__ uint32_t pack_likely(float x, const Group& g, uint32_t& unsure) {
  const float over = x - g.zero;
  const uint32_t code = __float_as_uint(__fmaf_rn(over, g.below, kPackMagic));
  unsure |= code ^ __float_as_uint(__fmaf_rn(over, g.above, kPackMagic));
  return code;
}
template <class Group>
__device__ __forceinline__ void pack_likely_pair(uint32_t& word, uint32_t x, const Group& low, const Group& high,
                                                 int place, uint32_t& unsure) {
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

// What a pair of likely codes is too small by, where they are unsure.
template <int BITS>
__device__ __forceinline__ uint32_t pack_correction(uint32_t x, const KvPackGroup& low, const KvPackGroup& high) {
  uint32_t likely = 0 - pack_excess<BITS>(0, 1), unsure = 0;
  pack_likely_pair(likely, x, low, high, 0, unsure);
  return pack_exact_pair<BITS>(x, low, high) - likely;
}

// Smallest and largest of the two halves of x each, of what was found so far. What they are brought together in has the
// largest with its sign turned.
struct KvRange2 {
  uint32_t low = 0x7c007c00u, high = 0xfc00fc00u;
  __device__ __forceinline__ void add(uint32_t x) { low = min_nan_f16x2(low, x), high = max_nan_f16x2(high, x); }
  __device__ __forceinline__ uint32_t of_low() const { return __byte_perm(low, high, 0x5410) ^ 0x80000000u; }
  __device__ __forceinline__ uint32_t of_high() const { return __byte_perm(low, high, 0x7632) ^ 0x80000000u; }
  __device__ __forceinline__ uint32_t of_both() const { return min_nan_f16x2(of_low(), of_high()); }
};

// Ranges of V things, of which every lane has parts, brought together over LANES lanes: lane by lane another of them
// ends up whole, from number pack_scatter() on, V / LANES of them where there are more than lanes.
template <int V, int LANES, int N = V>
__device__ __forceinline__ int pack_scatter(uint32_t (&range)[V], int base = 0) {
  if constexpr (LANES == 1) {
    return base;
  } else if constexpr (N == 1) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2)
      range[0] = min_nan_f16x2(range[0], __shfl_xor_sync(0xffffffffu, range[0], mask));
    return base;
  } else {
    const bool upper = threadIdx.x & (LANES / 2);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const uint32_t sent = upper ? range[i] : range[i + N / 2], kept = upper ? range[i + N / 2] : range[i];
      range[i] = min_nan_f16x2(kept, __shfl_xor_sync(0xffffffffu, sent, LANES / 2));
    }
    return pack_scatter<V, LANES / 2, N / 2>(range, upper ? base + N / 2 : base);
  }
}

// Groups as threads hand them to each other, in shared memory.
__device__ __forceinline__ void pack_give(uint32_t to, const KvPackGroup& g) {
  st_shared_v4(to, make_uint4(__float_as_uint(g.scale), __float_as_uint(g.below), __float_as_uint(g.above),
                              __float_as_uint(g.zero)));
}
struct KvPackTaken {
  uint32_t from;
  float below, above, zero;
  __device__ __forceinline__ explicit KvPackTaken(uint32_t from) : from(from) {
    const float4 v = ld_shared_f4(from);
    below = v.y, above = v.z, zero = v.w;
  }
  // For what is seldom.
  __device__ __forceinline__ KvPackGroup whole() const {
    const float4 v = ld_shared_f4(from);
    return {v.x, v.y, v.z, v.w, 0, 0};
  }
};

}  // namespace lpq::cuda
