// Round-to-nearest for AVX-512.
#if defined(LPQ_X86)
#include <immintrin.h>

#include "cpu/quant/rtn_kernels.h"

namespace lpq {
namespace {

void load_f16(const std::byte* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  for (; i < n; ++i) {
    uint16_t half;
    __builtin_memcpy(&half, from + 2 * i, 2);
    to[i] = _cvtsh_ss(half);
  }
}

#include "cpu/quant/rtn_kernels.inc"

}  // namespace

const RtnKernels& rtn_kernels_avx512() { return kKernels; }

}  // namespace lpq
#endif
