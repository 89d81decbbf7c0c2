#if defined(LPQ_X86)
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "cpu/banded/form.h"
#include "cpu/banded/kernels.h"

namespace lpq::banded {
namespace {

struct F {
  __m256 a, b;
};
struct U {
  __m256i a, b;
};
struct BF16 {};
struct F16 {};
constexpr int kRows = 2;
constexpr int panels_of(int rows) { return rows == 1 ? 2 : 1; }

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
inline F plus(const F& x, const F& y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline U load_words(const uint32_t* at) {
  const auto* words = reinterpret_cast<const __m256i*>(at);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
// Words whose high half is 0, as numbers of f16.
inline __m256 halves(__m256i low) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
template <class T>
F low(const U& u) {
  if constexpr (std::is_same_v<T, BF16>)
    return {_mm256_castsi256_ps(_mm256_slli_epi32(u.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(u.b, 16))};
  const __m256i mask = _mm256_set1_epi32(0xffff);
  return {halves(_mm256_and_si256(u.a, mask)), halves(_mm256_and_si256(u.b, mask))};
}
template <class T>
F high(const U& u) {
  if constexpr (std::is_same_v<T, BF16>) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(u.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(u.b, mask))};
  }
  return {halves(_mm256_srli_epi32(u.a, 16)), halves(_mm256_srli_epi32(u.b, 16))};
}

#include "cpu/banded/kernels_body.h"

}  // namespace

const Kernels& kernels_avx2() { return kKernels; }

}  // namespace lpq::banded
#endif
