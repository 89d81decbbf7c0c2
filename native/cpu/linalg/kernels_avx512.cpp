// AVX-512 kernels: tiles of 14x32 (f32) and 14x16 (f64), 28 accumulators in registers.
#include <immintrin.h>

#include <array>
#include <type_traits>
#include <utility>

#include "cpu/linalg/kernels_common.h"
#include "cpu/linalg/vectors_avx512.h"

namespace lpq::linalg {
namespace {

constexpr int kRows = 14;
struct Floats {
  using T = float;
  using V = __m512;
  using Mask = __mmask16;
  static constexpr int kWidth = 16;
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(Mask m, const float* p) { return _mm512_maskz_loadu_ps(m, p); }
  static void store(float* p, V a) { _mm512_storeu_ps(p, a); }
  static void store(Mask m, float* p, V a) { _mm512_mask_storeu_ps(p, m, a); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
};
struct Doubles {
  using T = double;
  using V = __m512d;
  using Mask = __mmask8;
  static constexpr int kWidth = 8, kRows = 4;
  static V load(const double* p) { return _mm512_loadu_pd(p); }
  static V load(Mask m, const double* p) { return _mm512_maskz_loadu_pd(m, p); }
  static void store(double* p, V a) { _mm512_storeu_pd(p, a); }
  static void store(Mask m, double* p, V a) { _mm512_mask_storeu_pd(p, m, a); }
  static V set(double x) { return _mm512_set1_pd(x); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
  static V add(V a, V b) { return _mm512_add_pd(a, b); }
  static V div(V a, V b) { return _mm512_div_pd(a, b); }
};

template <class Vec, int R, class T = typename Vec::T, class Mask = typename Vec::Mask>
void tile_rows(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, Mask m0, Mask m1, bool add) {
  constexpr int w = Vec::kWidth;
  typename Vec::V s0[R], s1[R];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    s0[r] = s1[r] = Vec::set(0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc + w), _MM_HINT_T0);
  }
  for (int64_t p = 0; p < kc; ++p, a += kRows, b += 2 * w) {
    const auto b0 = Vec::load(b), b1 = Vec::load(b + w);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const auto x = Vec::set(a[r]);
      s0[r] = Vec::fma(x, b0, s0[r]);
      s1[r] = Vec::fma(x, b1, s1[r]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    T* row = c + r * ldc;
    if (add) {
      s0[r] = Vec::add(Vec::load(m0, row), s0[r]);
      s1[r] = Vec::add(Vec::load(m1, row + w), s1[r]);
    }
    Vec::store(m0, row, s0[r]);
    Vec::store(m1, row + w, s1[r]);
  }
}

template <class Vec, size_t... I>
constexpr auto tiles_of(std::index_sequence<I...>) {
  return std::array{&tile_rows<Vec, static_cast<int>(I) + 1>...};
}

template <class Vec, class T = typename Vec::T>
void tile(int64_t kc, const T* a, const T* b, T* c, int64_t ldc, int rows, int cols, bool add) {
  static constexpr auto kTiles = tiles_of<Vec>(std::make_index_sequence<kRows>{});
  using Mask = typename Vec::Mask;
  kTiles[static_cast<size_t>(rows - 1)](kc, a, b, c, ldc, static_cast<Mask>(low_bits(cols, Vec::kWidth)),
                                        static_cast<Mask>(low_bits(cols - Vec::kWidth, Vec::kWidth)), add);
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

void pack_f32(float* dst, const PackSource& s, int count, int width, int64_t kc, float scale) {
  with_source(s, [&](const auto* src) {
    if constexpr (!std::is_same_v<decltype(src), const double*>) {
      if (s.step_p == 1) pack_along_k(dst, src, s.step_i, count, width, kc, scale);
      else pack_along_i(dst, src, s.step_p, count, width, kc, scale);
    }
  });
}

}  // namespace

const KernelSet& avx512_set() {
  static const KernelSet set = {
      {kRows, 32, pack_f32, tile<Floats>, spin<Floats, 2 * kRows>, depth_alone},
      {kRows, 16, pack_scalar<double>, tile<Doubles>, spin<Doubles, 2 * kRows>, depth_alone},
      {kRows, 32, pack_bf16<pack_f32>, tile_bf16<tile<Floats>>, spin<Floats, 2 * kRows>, depth_of_pairs},
      kTriangular<Doubles>,
      add_scaled};
  return set;
}

}  // namespace lpq::linalg
