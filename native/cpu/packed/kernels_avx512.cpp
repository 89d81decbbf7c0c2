#if defined(LPQ_X86)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#include <immintrin.h>

#include <algorithm>

#include "cpu/packed/form.h"
#include "cpu/packed/kernels.h"

namespace lpq::packed {
namespace {

using F = __m512;
using U = __m512i;
constexpr int kTile = 12, kPanels = 4;

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
// of two. A gather takes wider types of floats.
template <int B, bool Whole>
struct Values {
  static constexpr bool kInPlace = Whole && B > 5;
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
    if constexpr (B == 5) return _mm512_permutex2var_ps(tables[0], codes, tables[1]);
    return _mm512_i32gather_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << B) - 1)), table, 4);
  }
  const float* table;
  F tables[4];
  float constant;
};

#define LPQ_EVERY_COLUMN _Pragma("GCC unroll 32")
#include "cpu/packed/kernels_body.h"

}  // namespace

const Kernels& kernels_avx512() { return kKernels; }

}  // namespace lpq::packed
#endif
