// AVX2 + FMA kernels: tiles of 6x16 (f32) and 6x8 (f64), 12 accumulators in registers.
#include <immintrin.h>

#include <utility>

#include "cpu/linalg/kernels_common.h"

namespace lpq::linalg {
namespace {

constexpr int kRows = 6;

// The first rows x cols values of a full tile go to c; whole vectors where all columns are wanted.
template <class T>
void put(const T* tile, int width, T* c, int64_t ldc, int rows, int cols, bool add) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < cols; ++j) c[r * ldc + j] = add ? c[r * ldc + j] + tile[r * width + j] : tile[r * width + j];
}

template <int R>
void tile_rows_f32(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int cols, bool add) {
  __m256 s0[R], s1[R];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) s0[r] = s1[r] = _mm256_setzero_ps();
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 16) {
    const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r);
      s0[r] = _mm256_fmadd_ps(x, b0, s0[r]);
      s1[r] = _mm256_fmadd_ps(x, b1, s1[r]);
    }
  }
  if (cols == 16) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      float* row = c + r * ldc;
      _mm256_storeu_ps(row, add ? _mm256_add_ps(_mm256_loadu_ps(row), s0[r]) : s0[r]);
      _mm256_storeu_ps(row + 8, add ? _mm256_add_ps(_mm256_loadu_ps(row + 8), s1[r]) : s1[r]);
    }
    return;
  }
  alignas(32) float full[R * 16];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_store_ps(full + r * 16, s0[r]);
    _mm256_store_ps(full + r * 16 + 8, s1[r]);
  }
  put(full, 16, c, ldc, R, cols, add);
}

template <int R>
void tile_rows_f64(int64_t kc, const double* a, const double* b, double* c, int64_t ldc, int cols, bool add) {
  __m256d s0[R], s1[R];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) s0[r] = s1[r] = _mm256_setzero_pd();
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 8) {
    const __m256d b0 = _mm256_load_pd(b), b1 = _mm256_load_pd(b + 4);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256d x = _mm256_broadcast_sd(a + r);
      s0[r] = _mm256_fmadd_pd(x, b0, s0[r]);
      s1[r] = _mm256_fmadd_pd(x, b1, s1[r]);
    }
  }
  if (cols == 8) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      double* row = c + r * ldc;
      _mm256_storeu_pd(row, add ? _mm256_add_pd(_mm256_loadu_pd(row), s0[r]) : s0[r]);
      _mm256_storeu_pd(row + 4, add ? _mm256_add_pd(_mm256_loadu_pd(row + 4), s1[r]) : s1[r]);
    }
    return;
  }
  alignas(32) double full[R * 8];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_store_pd(full + r * 8, s0[r]);
    _mm256_store_pd(full + r * 8 + 4, s1[r]);
  }
  put(full, 8, c, ldc, R, cols, add);
}

using TileF32 = void (*)(int64_t, const float*, const float*, float*, int64_t, int, bool);
using TileF64 = void (*)(int64_t, const double*, const double*, double*, int64_t, int, bool);
constexpr TileF32 kTilesF32[kRows] = {tile_rows_f32<1>, tile_rows_f32<2>, tile_rows_f32<3>,
                                      tile_rows_f32<4>, tile_rows_f32<5>, tile_rows_f32<6>};
constexpr TileF64 kTilesF64[kRows] = {tile_rows_f64<1>, tile_rows_f64<2>, tile_rows_f64<3>,
                                      tile_rows_f64<4>, tile_rows_f64<5>, tile_rows_f64<6>};

void tile_f32(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int rows, int cols, bool add) {
  kTilesF32[rows - 1](kc, a, b, c, ldc, cols, add);
}
void tile_f64(int64_t kc, const double* a, const double* b, double* c, int64_t ldc, int rows, int cols, bool add) {
  kTilesF64[rows - 1](kc, a, b, c, ldc, cols, add);
}

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 load8(const F16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load8(const BF16* from) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline float load1(float v) { return v; }
inline float load1(F16 v) { return f16_to_f32(v.bits); }
inline float load1(BF16 v) { return bf16_to_f32(v.bits); }

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

template <class Source>
void pack_f32_from(float* dst, const PackSource& s, int count, int width, int64_t kc, float scale) {
  const auto* src = static_cast<const Source*>(s.data);
  if (s.step_p == 1) pack_along_k(dst, src, s.step_i, count, width, kc, scale);
  else pack_along_i(dst, src, s.step_p, count, width, kc, scale);
}

void pack_f32(float* dst, const PackSource& s, int count, int width, int64_t kc, float scale) {
  if (s.dtype == DType::f32) pack_f32_from<float>(dst, s, count, width, kc, scale);
  else if (s.dtype == DType::f16) pack_f32_from<F16>(dst, s, count, width, kc, scale);
  else pack_f32_from<BF16>(dst, s, count, width, kc, scale);
}

float spin_f32(int64_t n, float x) {
  __m256 sum[2 * kRows];
#pragma GCC unroll 28
  for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm256_set1_ps(x * s);  // all different, lest chains be merged
  const __m256 a = _mm256_set1_ps(x);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm256_fmadd_ps(a, a, sum[s]);
#pragma GCC unroll 28
  for (int s = 1; s < 2 * kRows; ++s) sum[0] = _mm256_add_ps(sum[0], sum[s]);
  return sum[0][0];
}

double spin_f64(int64_t n, double x) {
  __m256d sum[2 * kRows];
#pragma GCC unroll 28
  for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm256_set1_pd(x * s);  // all different, lest chains be merged
  const __m256d a = _mm256_set1_pd(x);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm256_fmadd_pd(a, a, sum[s]);
#pragma GCC unroll 28
  for (int s = 1; s < 2 * kRows; ++s) sum[0] = _mm256_add_pd(sum[0], sum[s]);
  return sum[0][0];
}

struct Doubles {
  using V = __m256d;
  static constexpr int kWidth = 4, kRows = 2;
  static V load(const double* p) { return _mm256_loadu_pd(p); }
  static void store(double* p, V a) { _mm256_storeu_pd(p, a); }
  static V set(double x) { return _mm256_set1_pd(x); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_pd(a, b, c); }
  static V div(V a, V b) { return _mm256_div_pd(a, b); }
};

}  // namespace

const Kernels<float>& avx2_f32() {
  static const Kernels<float> table = {kRows, 16, pack_f32, tile_f32, spin_f32};
  return table;
}
const Kernels<double>& avx2_f64() {
  static const Kernels<double> table = {kRows, 8, pack_scalar, tile_f64, spin_f64};
  return table;
}
const TriangularKernels& avx2_triangular() { return kTriangular<Doubles>; }
AddScaledFn avx2_add_scaled() { return add_scaled; }

}  // namespace lpq::linalg
