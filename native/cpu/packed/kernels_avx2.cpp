#if defined(LPQ_X86)
#include <immintrin.h>

#include <algorithm>

#include "cpu/packed/form.h"
#include "cpu/packed/kernels.h"

namespace lpq::packed {
namespace {

struct F {
  __m256 a, b;
};
struct U {
  __m256i a, b;
};
constexpr int kTile = 2, kPanels = 2;

inline F zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
inline F broadcast(const float* at) {
  const __m256 all = _mm256_broadcast_ss(at);
  return {all, all};
}
inline void store(float* at, const F& f) { _mm256_storeu_ps(at, f.a), _mm256_storeu_ps(at + 8, f.b); }
inline F fma(const F& x, const F& y, const F& z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline U load_words(const uint32_t* at) {
  const auto* words = reinterpret_cast<const __m256i*>(at);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
inline U right(const U& u, int by) { return {_mm256_srli_epi32(u.a, by), _mm256_srli_epi32(u.b, by)}; }
inline U left(const U& u, int by) { return {_mm256_slli_epi32(u.a, by), _mm256_slli_epi32(u.b, by)}; }
inline U either(const U& x, const U& y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline U both(const U& x, const U& y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline U words(uint32_t all) {
  const __m256i each = _mm256_set1_epi32(static_cast<int>(all));
  return {each, each};
}
inline F number(const U& u) { return {_mm256_cvtepi32_ps(u.a), _mm256_cvtepi32_ps(u.b)}; }
inline F minus(const F& x, float y) {
  const __m256 each = _mm256_set1_ps(y);
  return {_mm256_sub_ps(x.a, each), _mm256_sub_ps(x.b, each)};
}

// Eight words of a register are one permutation, which looks at their three lowest bits: that is three codes of one
// bit. Sixteen values are two, and bit 3 says which. A gather takes wider types of floats.
template <int B, bool Whole>
struct Values {
  static constexpr bool kInPlace = Whole && B > 3;
  static constexpr bool kSigned = false;
  static constexpr int kCodes = B == 1 ? 3 : 1;
  explicit Values(const Panel& p) : table(p.table), constant(p.constant) {
    alignas(32) float all[8];
    for (int which = 0; which < (B <= 3 ? kCodes : 2); ++which) {
      for (int i = 0; i < 8; ++i) all[i] = table[B <= 3 ? i >> which * B & ((1 << B) - 1) : 8 * which + i];
      tables[which] = _mm256_load_ps(all);
    }
  }
  __m256 half(__m256i codes, int which) const {
    if constexpr (B <= 3) return _mm256_permutevar8x32_ps(tables[which], codes);
    if constexpr (B == 4)
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(tables[0], codes), _mm256_permutevar8x32_ps(tables[1], codes),
                              _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
    return _mm256_i32gather_ps(table, _mm256_and_si256(codes, _mm256_set1_epi32((1 << B) - 1)), 4);
  }
  F of(const U& codes, int which) const { return {half(codes.a, which), half(codes.b, which)}; }
  const float* table;
  __m256 tables[3];
  float constant;
};

#define LPQ_EVERY_COLUMN _Pragma("GCC unroll 32")
#include "cpu/packed/kernels_body.h"

}  // namespace

const Kernels& kernels_avx2() { return kKernels; }

}  // namespace lpq::packed
#endif
