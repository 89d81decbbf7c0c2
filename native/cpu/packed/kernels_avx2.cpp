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
constexpr int kTile = 2;

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

// Eight words of a register are one permutation, which looks at their three lowest bits; sixteen are two, and bit 3
// says which. A gather takes wider types of floats.
template <int B, bool Whole>
struct Values {
  explicit Values(const Panel& p)
      : table(p.table), low(_mm256_loadu_ps(p.table)), high(_mm256_loadu_ps(p.table + 8)), constant(p.constant) {}
  __m256 half(__m256i codes) const {
    if constexpr (B == 1) codes = _mm256_and_si256(codes, _mm256_set1_epi32(1));
    if constexpr (B == 2) codes = _mm256_and_si256(codes, _mm256_set1_epi32(3));
    if constexpr (B <= 3) return _mm256_permutevar8x32_ps(low, codes);
    if constexpr (B == 4)
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes),
                              _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
    codes = _mm256_and_si256(codes, _mm256_set1_epi32((1 << B) - 1));
    return _mm256_i32gather_ps(table, codes, 4);
  }
  F of(const U& codes) const { return {half(codes.a), half(codes.b)}; }
  const float* table;
  __m256 low, high;
  float constant;
};

#define LPQ_EVERY_COLUMN _Pragma("GCC unroll 32")
#include "cpu/packed/kernels_body.h"

}  // namespace

const Kernels& kernels_avx2() { return kKernels; }

}  // namespace lpq::packed
#endif
