// AVX-512 kernels: tiles of 14x32 (f32) and 14x16 (f64), 28 accumulators in registers.
#include <immintrin.h>

#include <utility>

#include "cpu/linalg/kernels_common.h"

namespace lpq::linalg {
namespace {

constexpr int kRows = 14;
constexpr int kAhead = 512;  // bytes that packing asks for ahead in every row; too many rows for the hardware's guesses

template <int R>
void tile_rows_f32(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, __mmask16 m0, __mmask16 m1,
                   bool add) {
  __m512 s0[R], s1[R];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    s0[r] = s1[r] = _mm512_setzero_ps();
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc + 16), _MM_HINT_T0);
  }
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 32) {
    const __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + 16);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512 x = _mm512_set1_ps(a[r]);
      s0[r] = _mm512_fmadd_ps(x, b0, s0[r]);
      s1[r] = _mm512_fmadd_ps(x, b1, s1[r]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    float* row = c + r * ldc;
    if (add) {
      s0[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(m0, row), s0[r]);
      s1[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(m1, row + 16), s1[r]);
    }
    _mm512_mask_storeu_ps(row, m0, s0[r]);
    _mm512_mask_storeu_ps(row + 16, m1, s1[r]);
  }
}

template <int R>
void tile_rows_f64(int64_t kc, const double* a, const double* b, double* c, int64_t ldc, __mmask8 m0, __mmask8 m1,
                   bool add) {
  __m512d s0[R], s1[R];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    s0[r] = s1[r] = _mm512_setzero_pd();
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc + 8), _MM_HINT_T0);
  }
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 16) {
    const __m512d b0 = _mm512_load_pd(b), b1 = _mm512_load_pd(b + 8);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512d x = _mm512_set1_pd(a[r]);
      s0[r] = _mm512_fmadd_pd(x, b0, s0[r]);
      s1[r] = _mm512_fmadd_pd(x, b1, s1[r]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    double* row = c + r * ldc;
    if (add) {
      s0[r] = _mm512_add_pd(_mm512_maskz_loadu_pd(m0, row), s0[r]);
      s1[r] = _mm512_add_pd(_mm512_maskz_loadu_pd(m1, row + 8), s1[r]);
    }
    _mm512_mask_storeu_pd(row, m0, s0[r]);
    _mm512_mask_storeu_pd(row + 8, m1, s1[r]);
  }
}

using TileF32 = void (*)(int64_t, const float*, const float*, float*, int64_t, __mmask16, __mmask16, bool);
using TileF64 = void (*)(int64_t, const double*, const double*, double*, int64_t, __mmask8, __mmask8, bool);
template <size_t... I>
constexpr auto tiles_f32(std::index_sequence<I...>) {
  struct Table {
    TileF32 fn[sizeof...(I)];
  };
  return Table{{tile_rows_f32<static_cast<int>(I) + 1>...}};
}
template <size_t... I>
constexpr auto tiles_f64(std::index_sequence<I...>) {
  struct Table {
    TileF64 fn[sizeof...(I)];
  };
  return Table{{tile_rows_f64<static_cast<int>(I) + 1>...}};
}
constexpr auto kTilesF32 = tiles_f32(std::make_index_sequence<kRows>{});
constexpr auto kTilesF64 = tiles_f64(std::make_index_sequence<kRows>{});

unsigned low_bits(int count, int most) {
  return count <= 0 ? 0u : count >= most ? (1u << most) - 1u : (1u << count) - 1u;
}

void tile_f32(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int rows, int cols, bool add) {
  kTilesF32.fn[rows - 1](kc, a, b, c, ldc, static_cast<__mmask16>(low_bits(cols, 16)),
                         static_cast<__mmask16>(low_bits(cols - 16, 16)), add);
}
void tile_f64(int64_t kc, const double* a, const double* b, double* c, int64_t ldc, int rows, int cols, bool add) {
  kTilesF64.fn[rows - 1](kc, a, b, c, ldc, static_cast<__mmask8>(low_bits(cols, 8)),
                         static_cast<__mmask8>(low_bits(cols - 8, 8)), add);
}

inline __m512 load16(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
inline __m512 load16(const F16* from, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from)); }
inline __m512 load16(const BF16* from, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

// 16 rows of 16 in place: x[j] becomes column j.
inline void transpose16(__m512* x) {
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

// Rows along k (step_p = 1): 16 x 16 blocks are transposed in registers. Stores of 16 may run past a panel's 14 columns
// into the next k, which is written afterwards, or past the panel's end into its padding.
template <class Source>
void pack_along_k(float* dst, const Source* src, int64_t step_i, int count, int width, int64_t kc, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t p = 0; p < kc; p += 16) {
    const int depth = static_cast<int>(kc - p < 16 ? kc - p : 16);
    const auto mask = static_cast<__mmask16>(low_bits(depth, 16));
    for (int i = 0; i < width; i += 16) {
      __m512 x[16];
      for (int r = 0; r < 16 && i + r < count; ++r)
        _mm_prefetch(reinterpret_cast<const char*>(src + (i + r) * step_i + p) + kAhead, _MM_HINT_T0);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        x[r] = i + r < count ? _mm512_mul_ps(load16(src + (i + r) * step_i + p, mask), factor) : _mm512_setzero_ps();
      transpose16(x);
      float* to = dst + p * width + i;
      if (depth == 16) {
#pragma GCC unroll 16
        for (int q = 0; q < 16; ++q) _mm512_storeu_ps(to + q * width, x[q]);
      } else {
        for (int q = 0; q < depth; ++q) _mm512_storeu_ps(to + q * width, x[q]);
      }
    }
  }
}

template <class Source>
void pack_along_i(float* dst, const Source* src, int64_t step_p, int count, int width, int64_t kc, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int i = 0; i < width; i += 16) {
    const auto mask = static_cast<__mmask16>(low_bits(count - i, 16));
    if (width == 32) {
      for (int64_t p = 0; p < kc; ++p)
        _mm512_store_ps(dst + p * width + i, _mm512_mul_ps(load16(src + p * step_p + i, mask), factor));
    } else {
      for (int64_t p = 0; p < kc; ++p)
        _mm512_storeu_ps(dst + p * width + i, _mm512_mul_ps(load16(src + p * step_p + i, mask), factor));
    }
  }
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
  __m512 sum[2 * kRows];
#pragma GCC unroll 28
  for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_set1_ps(x * s);  // all different, lest chains be merged
  const __m512 a = _mm512_set1_ps(x);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_fmadd_ps(a, a, sum[s]);
#pragma GCC unroll 28
  for (int s = 1; s < 2 * kRows; ++s) sum[0] = _mm512_add_ps(sum[0], sum[s]);
  return sum[0][0];
}

double spin_f64(int64_t n, double x) {
  __m512d sum[2 * kRows];
#pragma GCC unroll 28
  for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_set1_pd(x * s);  // all different, lest chains be merged
  const __m512d a = _mm512_set1_pd(x);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_fmadd_pd(a, a, sum[s]);
#pragma GCC unroll 28
  for (int s = 1; s < 2 * kRows; ++s) sum[0] = _mm512_add_pd(sum[0], sum[s]);
  return sum[0][0];
}

struct Doubles {
  using V = __m512d;
  static constexpr int kWidth = 8, kRows = 4;
  static V load(const double* p) { return _mm512_loadu_pd(p); }
  static void store(double* p, V a) { _mm512_storeu_pd(p, a); }
  static V set(double x) { return _mm512_set1_pd(x); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
  static V div(V a, V b) { return _mm512_div_pd(a, b); }
};

}  // namespace

const Kernels<float>& avx512_f32() {
  static const Kernels<float> table = {kRows, 32, pack_f32, tile_f32, spin_f32};
  return table;
}
const Kernels<double>& avx512_f64() {
  static const Kernels<double> table = {kRows, 16, pack_scalar, tile_f64, spin_f64};
  return table;
}
const TriangularKernels& avx512_triangular() { return kTriangular<Doubles>; }
AddScaledFn avx512_add_scaled() { return add_scaled; }

}  // namespace lpq::linalg
