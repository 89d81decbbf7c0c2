// W4Ax's inner product for AVX2.
#if defined(LPQ_X86)
#include <immintrin.h>

#include <cmath>

#include "cpu/w4ax/kernels.h"

namespace lpq::w4ax {
namespace {

void block_sums(const int16_t* x, const int16_t* w, int64_t k, int32_t* sums) {
  __m256i sum[kRows];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (int64_t i = 0; i < kBlock; i += 16) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    for (int64_t r = 0; r < kRows; ++r) {
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + r * k + i));
      sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(a, b));
    }
  }
  const __m256i low = _mm256_hadd_epi32(sum[0], sum[1]), high = _mm256_hadd_epi32(sum[2], sum[3]);
  const __m256i all = _mm256_hadd_epi32(low, high);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                   _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#include "cpu/w4ax/kernels_body.h"

}  // namespace

const Kernels& kernels_avx2() { return kKernels; }

}  // namespace lpq::w4ax
#endif
