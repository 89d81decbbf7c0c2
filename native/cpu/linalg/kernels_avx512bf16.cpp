// AVX-512 BF16 kernels: tiles of 14x32 whose words are pairs of k, 28 accumulators in registers. VDPBF16PS adds the
// product of the second k, then that of the first, each rounded to f32, denormal operands and results taken as 0.
#include "cpu/linalg/vectors_avx512.h"

#include <array>
#include <type_traits>
#include <utility>

namespace lpq::linalg {
namespace {

constexpr int kRows = 14, kWidth = 16;

int64_t depth_of_words(int64_t kc) { return (kc + 1) / 2; }

inline __m512bh pairs(__m512 words) { return (__m512bh)_mm512_castps_si512(words); }

template <int R>
void tile_rows(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, __mmask16 m0, __mmask16 m1,
               bool add) {
  __m512 s0[R], s1[R];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    s0[r] = s1[r] = _mm512_setzero_ps();
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * ldc + kWidth), _MM_HINT_T0);
  }
  for (int64_t p = depth_of_words(kc); p > 0; --p, a += kRows, b += 2 * kWidth) {
    const __m512bh b0 = pairs(_mm512_loadu_ps(b)), b1 = pairs(_mm512_loadu_ps(b + kWidth));
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512bh x = pairs(_mm512_set1_ps(a[r]));
      s0[r] = _mm512_dpbf16_ps(s0[r], x, b0);
      s1[r] = _mm512_dpbf16_ps(s1[r], x, b1);
    }
  }
  const FlushToZero flush;
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    float* row = c + r * ldc;
    if (add) {
      s0[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(m0, row), s0[r]);
      s1[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(m1, row + kWidth), s1[r]);
    }
    _mm512_mask_storeu_ps(row, m0, s0[r]);
    _mm512_mask_storeu_ps(row + kWidth, m1, s1[r]);
  }
}

template <size_t... I>
constexpr auto tiles_of(std::index_sequence<I...>) {
  return std::array{&tile_rows<static_cast<int>(I) + 1>...};
}

void tile(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int rows, int cols, bool add) {
  static constexpr auto kTiles = tiles_of(std::make_index_sequence<kRows>{});
  kTiles[static_cast<size_t>(rows - 1)](kc, a, b, c, ldc, static_cast<__mmask16>(low_bits(cols, kWidth)),
                                        static_cast<__mmask16>(low_bits(cols - kWidth, kWidth)), add);
}

// 32 elements of a row of which `count` count, as 16 pairs.
template <class Source>
inline __m512 pairs_along_k(const Source* from, int count) {
  const auto low = static_cast<__mmask16>(low_bits(count, 16)), high = static_cast<__mmask16>(low_bits(count - 16, 16));
  return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(load16(from + 16, high), load16(from, low)));
}
inline __m512 pairs_along_k(const BF16* from, int count) {
  const __mmask32 mask = count >= 32 ? ~0u : (1u << count) - 1u;
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
}

// Rows along k (step_p = 1): blocks of 16 rows and 32 k are transposed in registers as words. Stores of 16 may run past
// a panel's 14 columns, as those of f32 do.
template <class Source>
void pack_along_k(float* dst, const Source* src, int64_t step_i, int count, int width, int64_t kc) {
  for (int64_t p = 0; p < kc; p += 32) {
    const int left = static_cast<int>(kc - p < 32 ? kc - p : 32), depth = (left + 1) / 2;
    for (int i = 0; i < width; i += 16) {
      __m512 x[16];
      for (int r = 0; r < 16 && i + r < count; ++r)
        _mm_prefetch(reinterpret_cast<const char*>(src + (i + r) * step_i + p) + kAhead, _MM_HINT_T0);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        x[r] = i + r < count ? pairs_along_k(src + (i + r) * step_i + p, left) : _mm512_setzero_ps();
      transpose16(x);
      float* to = dst + p / 2 * width + i;
      if (depth == 16) {
#pragma GCC unroll 16
        for (int q = 0; q < 16; ++q) _mm512_storeu_ps(to + q * width, x[q]);
      } else {
        for (int q = 0; q < depth; ++q) _mm512_storeu_ps(to + q * width, x[q]);
      }
    }
  }
}

// Columns of k (step_i = 1): two of them become pairs.
template <class Source>
void pack_along_i(float* dst, const Source* src, int64_t step_p, int count, int width, int64_t kc) {
  alignas(64) uint16_t order[32];
  for (int j = 0; j < 16; ++j)
    order[2 * j] = static_cast<uint16_t>(j), order[2 * j + 1] = static_cast<uint16_t>(16 + j);
  const __m512i interleaved = _mm512_load_si512(order);
  for (int i = 0; i < width; i += 16) {
    const auto mask = static_cast<__mmask16>(low_bits(count - i, 16));
    for (int64_t p = 0; p < kc; p += 2) {
      const __m512 first = load16(src + p * step_p + i, mask);
      const __m512 second = p + 1 < kc ? load16(src + (p + 1) * step_p + i, mask) : _mm512_setzero_ps();
      const auto both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
      _mm512_storeu_si512(dst + p / 2 * width + i, _mm512_permutexvar_epi16(interleaved, both));
    }
  }
}

// `scale` is 1: rounded values have no room for another.
void pack(float* dst, const PackSource& s, int count, int width, int64_t kc, float) {
  with_source(s, [&](const auto* src) {
    if constexpr (!std::is_same_v<decltype(src), const double*>) {
      if (s.step_p == 1) pack_along_k(dst, src, s.step_i, count, width, kc);
      else pack_along_i(dst, src, s.step_p, count, width, kc);
    }
  });
}

float spin_pairs(int64_t n, float x) {
  __m512 sum[2 * kRows];
#pragma GCC unroll 28
  for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_set1_ps(x * static_cast<float>(s));
  const __m512bh a = pairs(_mm512_set1_ps(x));
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 28
    for (int s = 0; s < 2 * kRows; ++s) sum[s] = _mm512_dpbf16_ps(sum[s], a, a);
#pragma GCC unroll 28
  for (int s = 1; s < 2 * kRows; ++s) sum[0] = _mm512_add_ps(sum[0], sum[s]);
  float out[kWidth];
  _mm512_storeu_ps(out, sum[0]);
  return out[0];
}

}  // namespace

const Kernels<float>& avx512bf16_kernels() {
  static const Kernels<float> kernels = {kRows, 2 * kWidth, pack, tile, spin_pairs, depth_of_words};
  return kernels;
}

}  // namespace lpq::linalg
