// AVX2 + FMA kernels: tiles of 6x16 (f32) and 6x8 (f64), 12 accumulators in registers.
#include <immintrin.h>

#include <type_traits>

#include "cpu/linalg/kernels_common.h"

namespace lpq::linalg {
namespace {

constexpr int kRows = 6;

struct Floats {
  using T = float;
  using V = __m256;
  static constexpr int kWidth = 8;
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V a) { _mm256_storeu_ps(p, a); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
};
struct Doubles {
  using T = double;
  using V = __m256d;
  static constexpr int kWidth = 4, kRows = 2;
  static V load(const double* p) { return _mm256_loadu_pd(p); }
  static void store(double* p, V a) { _mm256_storeu_pd(p, a); }
  static V set(double x) { return _mm256_set1_pd(x); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_pd(a, b, c); }
  static V add(V a, V b) { return _mm256_add_pd(a, b); }
  static V div(V a, V b) { return _mm256_div_pd(a, b); }
};

template <class Vec, int R, class T = typename Vec::T>
void tile_rows(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, int cols, bool add) {
  constexpr int w = Vec::kWidth;
  typename Vec::V s0[R], s1[R];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) s0[r] = s1[r] = Vec::set(0);
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 2 * w) {
    const auto b0 = Vec::load(b), b1 = Vec::load(b + w);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const auto x = Vec::set(a[r]);
      s0[r] = Vec::fma(x, b0, s0[r]);
      s1[r] = Vec::fma(x, b1, s1[r]);
    }
  }
  if (cols == 2 * w) {  // whole vectors where all columns are wanted
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      T* row = c + r * ldc;
      Vec::store(row, add ? Vec::add(Vec::load(row), s0[r]) : s0[r]);
      Vec::store(row + w, add ? Vec::add(Vec::load(row + w), s1[r]) : s1[r]);
    }
    return;
  }
  T full[R * 2 * w];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) Vec::store(full + r * 2 * w, s0[r]), Vec::store(full + r * 2 * w + w, s1[r]);
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < cols; ++j) c[r * ldc + j] = add ? c[r * ldc + j] + full[r * 2 * w + j] : full[r * 2 * w + j];
}

template <class Vec, class T = typename Vec::T>
void tile(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, int rows, int cols, bool add) {
  static constexpr decltype(&tile_rows<Vec, 1>) kTiles[kRows] = {
      tile_rows<Vec, 1>, tile_rows<Vec, 2>, tile_rows<Vec, 3>, tile_rows<Vec, 4>, tile_rows<Vec, 5>, tile_rows<Vec, 6>};
  kTiles[rows - 1](kc, a, b, c, ldc, cols, add);
}

inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 load8(const F16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load8(const BF16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline void transpose8(__m256* x) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x20);
    t[4 + j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) x[i] = t[i];
}

template <class Source>
void pack_along_k(float* dst, const Source* src, int64_t step_i, int count, int width, int64_t kc, float scale) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t p = 0;
  for (; p + 8 <= kc; p += 8)
    for (int i = 0; i < width; i += 8) {
      __m256 x[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r)
        x[r] = i + r < count ? _mm256_mul_ps(load8(src + (i + r) * step_i + p), factor) : _mm256_setzero_ps();
      transpose8(x);
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q)
        _mm256_storeu_ps(dst + (p + q) * width + i, x[q]);  // may run into the next k, written later
    }
  for (; p < kc; ++p)
    for (int i = 0; i < width; ++i) dst[p * width + i] = i < count ? load1(src[i * step_i + p]) * scale : 0.0f;
}

template <class Source>
void pack_along_i(float* dst, const Source* src, int64_t step_p, int count, int width, int64_t kc, float scale) {
  if (count == 16) {
    const __m256 factor = _mm256_set1_ps(scale);
    for (int64_t p = 0; p < kc; ++p) {
      _mm256_store_ps(dst + p * 16, _mm256_mul_ps(load8(src + p * step_p), factor));
      _mm256_store_ps(dst + p * 16 + 8, _mm256_mul_ps(load8(src + p * step_p + 8), factor));
    }
    return;
  }
  for (int64_t p = 0; p < kc; ++p)
    for (int i = 0; i < width; ++i) dst[p * width + i] = i < count ? load1(src[p * step_p + i]) * scale : 0.0f;
}

void pack_f32(float* dst, const PackSource& s, int count, int width, int64_t kc, float scale) {
  with_source(s, [&](const auto* src) {
    if constexpr (!std::is_same_v<decltype(src), const double*>) {
      if (s.step_p == 1) pack_along_k(dst, src, s.step_i, count, width, kc, scale);
      else pack_along_i(dst, src, s.step_p, count, width, kc, scale);
    }
  });
}

}  // namespace

const KernelSet& avx2_set() {
  static const KernelSet set = {
      {kRows, 16, pack_f32, tile<Floats>, spin<Floats, 2 * kRows>, depth_alone},
      {kRows, 8, pack_scalar<double>, tile<Doubles>, spin<Doubles, 2 * kRows>, depth_alone},
      {kRows, 16, pack_bf16<pack_f32>, tile_bf16<tile<Floats>>, spin<Floats, 2 * kRows>, depth_of_pairs},
      kTriangular<Doubles>,
      add_scaled};
  return set;
}

}  // namespace lpq::linalg
