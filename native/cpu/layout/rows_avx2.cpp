// Codes of a bitstream to bytes, 32 at a time: the arithmetic of rows.cpp in four lanes.
#ifdef LPQ_X86
#include <immintrin.h>

#include <cstring>

#include "cpu/layout/rows.h"

namespace lpq::layout {
namespace {

constexpr long long every(int step, int bits) {
  unsigned long long mask = 0;
  for (int at = 0; at < 64; at += step) mask |= ((1ull << bits) - 1) << at;
  return static_cast<long long>(mask);
}

// Bytes 0 .. bits of the first lane's codes and bits .. 2 bits of the second's: with a phase, eight codes end in one
// byte more.
template <int bits>
__m256i two_lanes_twice() {
  alignas(32) signed char from[32];
  for (int i = 0; i < 32; ++i) from[i] = static_cast<signed char>(i % 8 > bits ? -128 : i % 8 + (i / 8 % 2) * bits);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

template <int bits>
int64_t expand(const uint8_t* from, int64_t left, int phase, int64_t count, uint8_t* out) {
  const __m256i lanes = two_lanes_twice<bits>();
  const __m128i shift = _mm_cvtsi32_si128(phase);
  const auto part = [](__m256i x, int step, int width, int up) {
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi64x(every(step, width)));
    const __m256i high = _mm256_and_si256(
        x, _mm256_set1_epi64x(static_cast<long long>(static_cast<unsigned long long>(every(step, width)) << width)));
    return _mm256_or_si256(low, _mm256_slli_epi64(high, up));
  };
  int64_t done = 0;
  for (; done + 32 <= count && left >= 2 * bits + 16; done += 32, from += 4 * bits, left -= 4 * bits) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)),
                  second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * bits));
    __m256i x = _mm256_shuffle_epi8(_mm256_set_m128i(second, first), lanes);
    x = _mm256_srl_epi64(x, shift);
    x = part(x, 64, 4 * bits, 32 - 4 * bits);
    x = part(x, 32, 2 * bits, 16 - 2 * bits);
    x = part(x, 16, bits, 8 - bits);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + done), x);
  }
  return done;
}

// Every byte of the result looks at its own bit.
int64_t expand_bits(const uint8_t* from, int64_t left, int phase, int64_t count, uint8_t* out) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull)), one = _mm256_set1_epi8(1);
  int64_t done = 0;
  for (; done + 32 <= count && left >= 8; done += 32, from += 4, left -= 4) {
    uint64_t bits;
    std::memcpy(&bits, from, 8);
    const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits >> phase)), spread);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + done), _mm256_and_si256(set, one));
  }
  return done;
}

}  // namespace

int64_t expand_codes_avx2(const uint8_t* from, int64_t left, int phase, int64_t count, int bits, uint8_t* out) {
  switch (bits) {
    case 1: return expand_bits(from, left, phase, count, out);
    case 2: return expand<2>(from, left, phase, count, out);
    case 3: return expand<3>(from, left, phase, count, out);
    case 4: return expand<4>(from, left, phase, count, out);
    case 5: return expand<5>(from, left, phase, count, out);
    case 6: return expand<6>(from, left, phase, count, out);
    case 7: return expand<7>(from, left, phase, count, out);
    default: return 0;
  }
}

}  // namespace lpq::layout
#endif
