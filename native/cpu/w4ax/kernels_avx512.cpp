// W4Ax's inner product for AVX-512.
#if defined(LPQ_X86)
#include <immintrin.h>

#include <cmath>

#include "cpu/w4ax/kernels.h"

namespace lpq::w4ax {
namespace {

__m256i halves(__m512i v) { return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)); }

void block_sums(const int16_t* x, const int16_t* w, int64_t k, int32_t* sums) {
  __m512i sum[kRows];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (int64_t i = 0; i < kBlock; i += 32) {
    const __m512i a = _mm512_loadu_si512(x + i);
    for (int64_t r = 0; r < kRows; ++r)
      sum[r] = _mm512_add_epi32(sum[r], _mm512_madd_epi16(a, _mm512_loadu_si512(w + r * k + i)));
  }
  const __m256i low = _mm256_hadd_epi32(halves(sum[0]), halves(sum[1]));
  const __m256i high = _mm256_hadd_epi32(halves(sum[2]), halves(sum[3]));
  const __m256i all = _mm256_hadd_epi32(low, high);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                   _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#include "cpu/w4ax/kernels_body.h"

}  // namespace

const Kernels& kernels_avx512() { return kKernels; }

}  // namespace lpq::w4ax
#endif
