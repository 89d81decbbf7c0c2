// What the files of AVX-512 kernels share. Static, as kernels_common.h.
#pragma once
#include <immintrin.h>

#include "cpu/linalg/kernels_common.h"

namespace lpq::linalg {
namespace {

// Bytes that packing asks for ahead in every row; too many rows for the hardware's guesses.
[[maybe_unused]] constexpr int kAhead = 512;

[[maybe_unused]] inline unsigned low_bits(int count, int most) {
  return count <= 0 ? 0u : count >= most ? (1u << most) - 1u : (1u << count) - 1u;
}

[[maybe_unused]] inline __m512 load16(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
[[maybe_unused]] inline __m512 load16(const F16* from, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}
[[maybe_unused]] inline __m512 load16(const BF16* from, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

// 16 rows of 16 in place: x[j] becomes column j.
[[maybe_unused]] inline void transpose16(__m512* x) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    x[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    x[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    x[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
  }
  // x[4g + j] holds, in its 128-bit part q, rows 4g..4g+3 of column 4q + j.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 lo01 = _mm512_shuffle_f32x4(x[j], x[4 + j], 0x88), hi01 = _mm512_shuffle_f32x4(x[j], x[4 + j], 0xdd);
    const __m512 lo23 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0x88),
                 hi23 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(lo01, lo23, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(lo01, lo23, 0xdd);
    t[4 + j] = _mm512_shuffle_f32x4(hi01, hi23, 0x88);
    t[12 + j] = _mm512_shuffle_f32x4(hi01, hi23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = t[i];
}

}  // namespace
}  // namespace lpq::linalg
