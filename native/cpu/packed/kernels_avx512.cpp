#if defined(LPQ_X86)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/packed/form.h"
#include "cpu/packed/kernels.h"

namespace lpq::packed {
namespace {

using F = __m512;
using U = __m512i;
constexpr int kTile = 8, kPanels = 4;

inline F zeros() { return _mm512_setzero_ps(); }
inline F load(const float* at) { return _mm512_loadu_ps(at); }
inline F broadcast(const float* at) { return _mm512_set1_ps(*at); }
inline void store(float* at, F f) { _mm512_storeu_ps(at, f); }
inline F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
inline U load_words(const uint32_t* at) { return _mm512_loadu_si512(at); }
inline U right(U u, int by) { return _mm512_srli_epi32(u, static_cast<unsigned>(by)); }
inline U left(U u, int by) { return _mm512_slli_epi32(u, static_cast<unsigned>(by)); }
inline U either(U x, U y) { return _mm512_or_si512(x, y); }
inline U both(U x, U y) { return _mm512_and_si512(x, y); }
inline U words(uint32_t all) { return _mm512_set1_epi32(static_cast<int>(all)); }
inline F number(U u) { return _mm512_cvtepi32_ps(u); }
inline F minus(F x, float y) { return _mm512_sub_ps(x, _mm512_set1_ps(y)); }

// Permutations of one and of two registers look at the four and five lowest bits: that is four codes of one bit, or two
// of two.
template <int B, bool Whole>
struct Values {
  static constexpr bool kInPlace = Whole && B > 5;
  static constexpr bool kSigned = false;
  static constexpr int kCodes = B <= 2 ? 4 / B : 1;
  explicit Values(const Panel& p) : table(p.table), constant(p.constant) {
    alignas(64) float all[16];
    for (int which = 0; which < (B <= 4 ? kCodes : 2); ++which) {
      for (int i = 0; i < 16; ++i) all[i] = table[B <= 4 ? i >> which * B & ((1 << B) - 1) : 16 * which + i];
      tables[which] = _mm512_load_ps(all);
    }
  }
  F of(U codes, int which) const {
    if constexpr (B <= 4) return _mm512_permutexvar_ps(codes, tables[which]);
    return _mm512_permutex2var_ps(tables[0], codes, tables[1]);
  }
  const float* table;
  F tables[4];
  float constant;
};

// f, negative where the highest bit of `sign` is set.
inline F with_sign(F f, U sign) {
  constexpr int kFirstOrBothOthers = 0xf8;
  const U bits = _mm512_ternarylogic_epi32(_mm512_castps_si512(f), sign, words(0x80000000u), kFirstOrBothOthers);
  return _mm512_castsi512_ps(bits);
}

// Floats of up to 8 bits are exact in bfloat16, which is the upper half of f32, and a permutation of two registers
// looks at 6 bits of such halves: codes of 6 bits, magnitudes of 7, and half of those of 8. Lower halves become 0.
constexpr __mmask32 kUpper = 0xaaaaaaaau;
struct Halves {
  explicit Halves(const float* table) {
    alignas(64) uint16_t halves[64];
    for (int i = 0; i < 64; ++i) {
      uint32_t bits;
      std::memcpy(&bits, table + i, sizeof bits);
      halves[i] = static_cast<uint16_t>(bits >> 16);
    }
    low = _mm512_load_si512(halves), high = _mm512_load_si512(halves + 32);
  }
  U of(U codes) const { return _mm512_maskz_permutex2var_epi16(kUpper, low, codes, high); }
  U low, high;
};

template <>
struct Values<6, false> {
  static constexpr bool kInPlace = false;
  static constexpr bool kSigned = true;
  static constexpr int kPlace = 16, kCodes = 1;
  explicit Values(const Panel& p) : all(p.table) {}
  F of(U code, U) const { return _mm512_castsi512_ps(all.of(code)); }
  Halves all;
};

#if defined(LPQ_VBMI)
// With VBMI a permutation of two registers looks at 7 bits of bytes: one gives the lower byte of the bfloat16, one the
// upper. Both of a word's upper bytes become the code, or what is at its bit; its lower ones 0.
constexpr __mmask64 kUpperBytes = 0xccccccccccccccccull, kThird = 0x4444444444444444ull,
                    kFourth = ~kThird & kUpperBytes;
inline U at_bytes(U word, int bit) {
  const U from = _mm512_set1_epi64(0x2020202000000000ll);
  return _mm512_maskz_multishift_epi64_epi8(kUpperBytes,
                                            _mm512_add_epi8(from, _mm512_set1_epi8(static_cast<char>(bit))), word);
}

struct Bytes {
  explicit Bytes(const float* table) {
    alignas(64) uint8_t lower[128], upper[128];
    for (int i = 0; i < 128; ++i) {
      uint32_t bits;
      std::memcpy(&bits, table + i, sizeof bits);
      lower[i] = static_cast<uint8_t>(bits >> 16), upper[i] = static_cast<uint8_t>(bits >> 24);
    }
    for (int i = 0; i < 2; ++i) low[i] = _mm512_load_si512(lower + 64 * i), high[i] = _mm512_load_si512(upper + 64 * i);
  }
  U of(U codes) const {
    const U third = _mm512_mask2_permutex2var_epi8(low[0], codes, kThird, low[1]);
    return _mm512_mask2_permutex2var_epi8(high[0], third, kFourth, high[1]);
  }
  U low[2], high[2];
};

template <>
struct Values<7, false> {
  static constexpr bool kInPlace = false;
  explicit Values(const Panel& p) : all(p.table) {}
  F at(U word, int bit) const { return _mm512_castsi512_ps(all.of(at_bytes(word, bit))); }
  Bytes all;
};

template <>
struct Values<8, false> {
  static constexpr bool kInPlace = false;
  explicit Values(const Panel& p) : all(p.table) {}
  F at(U word, int bit) const {
    const U codes = at_bytes(word, bit);
    return with_sign(_mm512_castsi512_ps(all.of(codes)), codes);
  }
  Bytes all;
};
#else
template <>
struct Values<7, false> {
  static constexpr bool kInPlace = false;
  static constexpr bool kSigned = true;
  static constexpr int kPlace = 16, kCodes = 1;
  explicit Values(const Panel& p) : all(p.table) {}
  F of(U magnitude, U sign) const { return with_sign(_mm512_castsi512_ps(all.of(magnitude)), sign); }
  Halves all;
};

template <>
struct Values<8, false> {
  static constexpr bool kInPlace = false;
  static constexpr bool kSigned = true;
  static constexpr int kPlace = 16, kCodes = 1;
  explicit Values(const Panel& p) : small(p.table), large(p.table + 64) {}
  F of(U magnitude, U sign) const {
    const __mmask32 beyond = _mm512_mask_test_epi16_mask(kUpper, magnitude, words(64u << kPlace));
    const U bits = _mm512_mask_blend_epi16(beyond, small.of(magnitude), large.of(magnitude));
    return with_sign(_mm512_castsi512_ps(bits), sign);
  }
  Halves small, large;
};
#endif

#define LPQ_EVERY_COLUMN _Pragma("GCC unroll 32")
#include "cpu/packed/kernels_body.h"

}  // namespace

#if defined(LPQ_VBMI)
const Kernels& kernels_avx512vbmi() { return kKernels; }
#else
const Kernels& kernels_avx512() { return kKernels; }
#endif

}  // namespace lpq::packed
#endif
