#if defined(LPQ_X86)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#include <immintrin.h>

#include "cpu/banded/form.h"
#include "cpu/banded/kernels.h"

namespace lpq::banded {
namespace {

constexpr int kRows = 4;

inline __m512bh pairs(__m512i words) { return (__m512bh)words; }

template <int R, int P>
void sums_of(const Strip& s, int panel) {
  const uint32_t* words = s.words + panel * kPanel;
  const float* x = s.x;
  __m512 sum[P][2][R];
#pragma GCC unroll 4
  for (int j = 0; j < P; ++j)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[j][0][r] = sum[j][1][r] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < (s.kc + 1) / 2; ++pair, words += s.row)
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) {
      const __m512bh first = pairs(_mm512_loadu_si512(words + j * kPanel)),
                     second = pairs(_mm512_loadu_si512(words + j * kPanel + 16));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512bh each = pairs(_mm512_castps_si512(_mm512_set1_ps(x[pair * R + r])));
        sum[j][0][r] = _mm512_dpbf16_ps(sum[j][0][r], each, first);
        sum[j][1][r] = _mm512_dpbf16_ps(sum[j][1][r], each, second);
      }
    }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < P; ++j)
      for (int h = 0; h < 2; ++h) {
        float* to = s.sums + r * kBand * kPanel + (panel + j) * kPanel + 16 * h;
        _mm512_storeu_ps(to, s.add ? _mm512_add_ps(_mm512_loadu_ps(to), sum[j][h][r]) : sum[j][h][r]);
      }
}

template <int R>
void all_panels(const Strip& s) {
  constexpr int wide = R <= 2 ? 4 : 2;
  int panel = 0;
  for (; panel + wide <= s.panels; panel += wide) sums_of<R, wide>(s, panel);
  for (; panel < s.panels; ++panel) sums_of<R, 1>(s, panel);
}

template <int R = kRows>
void strip(const Strip& s) {
  if (s.rows == R) all_panels<R>(s);
  else if constexpr (R > 1) strip<R - 1>(s);
}

}  // namespace

void pairs_avx512bf16(const Strip& s) { strip(s); }

}  // namespace lpq::banded
#endif
