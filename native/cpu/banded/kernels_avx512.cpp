#if defined(LPQ_X86)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "cpu/banded/form.h"
#include "cpu/banded/kernels.h"

namespace lpq::banded {
namespace {

using F = __m512;
using U = __m512i;
struct BF16 {};
struct F16 {};
constexpr int kRows = 4;
constexpr int panels_of(int rows) { return rows <= 2 ? 4 : 2; }

inline F zeros() { return _mm512_setzero_ps(); }
inline F load(const float* at) { return _mm512_loadu_ps(at); }
inline F broadcast(const float* at) { return _mm512_set1_ps(*at); }
inline void store(float* at, F f) { _mm512_storeu_ps(at, f); }
inline F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
inline F plus(F x, F y) { return _mm512_add_ps(x, y); }
inline U load_words(const uint32_t* at) { return _mm512_loadu_si512(at); }
template <class T>
inline F low(U u) {
  if constexpr (std::is_same_v<T, BF16>) return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(u));
}
template <class T>
inline F high(U u) {
  if constexpr (std::is_same_v<T, BF16>)
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}

#include "cpu/banded/kernels_body.h"

}  // namespace

const Kernels& kernels_avx512() { return kKernels; }

}  // namespace lpq::banded
#endif
