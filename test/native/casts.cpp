// The fast casts of native/cuda/gemm/dequant.cuh and dequant_chunk.cuh, run on the host: every type, f16 and bf16,
// every code in every position of a chunk, the other positions full of noise. Expectations come from the definitions:
// numbers of codes, formats of halves, and where the packed format puts bits (test/gpu/native/packed_format.h).
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>

#include "../gpu/native/packed_format.h"
#include "cuda/gemm/dequant_chunk.cuh"

using namespace lpq::cuda;

namespace {

long long checks = 0, failures = 0;
std::mt19937_64 noise(7);

double half_value(uint32_t bits, bool bf) {
  const int m = bf ? 7 : 10, e = bf ? 8 : 5, bias = bf ? 127 : 15;
  const int power = bits >> m & ((1 << e) - 1), fraction = bits & ((1 << m) - 1);
  if (power == (1 << e) - 1) return fraction ? NAN : bits >> 15 ? -INFINITY : INFINITY;
  const double size =
      power == 0 ? std::ldexp(fraction, 1 - bias - m) : std::ldexp((1 << m) + fraction, power - bias - m);
  return bits >> 15 ? -size : size;
}

// The words of a lane's chunk whose 32 codes are given as [pair][half].
template <int B>
void chunk_words(const uint32_t (&codes)[16][2], uint32_t (&words)[B]) {
  for (uint32_t& w : words) w = 0;
  for (int pair = 0; pair < 16; ++pair)
    for (int half = 0; half < 2; ++half)
      for (int m = 0; m < B; ++m) {
        // Lane 0, chunk 0: n = 8 r, k = 8 j + half.
        const lpq::test::Place p = lpq::test::packed_place(B, 1, pair % 4 * 8, pair / 4 * 8 + half, m);
        const int word = static_cast<int>(p.byte / 512 * 4 + p.byte % 16 / 4);
        words[word] |= (codes[pair][half] >> m & 1) << p.bit;
      }
}

template <int B, class Cast, class Want>
void every_code(const char* name, bool is_signed, int exponent, bool bf, const Want& want) {
  const Cast cast(is_signed, exponent);
  const ChunkCast<Cast> chunk(is_signed, exponent);
  // Far pairs: numbers near the least that bf16 holds, for activations times 2^kFarPower.
  double far = 1;
  if constexpr (ChunkCast<Cast>::kFarPairs)
    far = static_cast<double>(cast.unpower) / std::ldexp(static_cast<double>(chunk.unpower), kFarPower);
  for (int pair = 0; pair < 16; ++pair)
    for (int half = 0; half < 2; ++half)
      for (uint32_t code = 0; code < 1u << B; ++code) {
        uint32_t codes[16][2], words[B];
        for (auto& p : codes)
          for (uint32_t& c : p) c = static_cast<uint32_t>(noise()) & ((1u << B) - 1);
        codes[pair][half] = code;
        chunk_words<B>(codes, words);
        uint32_t together[16];
        chunk.pairs(words, together);
        for (int i = 0; i < 16; ++i)
          for (int h = 0; h < 2; ++h) {
            const double value = want(codes[i][h], i & 3);
            for (const bool all : {false, true}) {
              const double expected = all ? value * far : value;
              const double got = half_value((all ? together[i] : cast.pair(words, i)) >> 16 * h & 0xffff, bf);
              ++checks;
              if (!(got == expected && std::signbit(got) == std::signbit(expected)) && !(std::isnan(expected))) {
                if (++failures <= 20)
                  std::printf("FAIL %s %s pair %d half %d code %u: %.9g, not %.9g\n", name, bf ? "bf16" : "f16", i, h,
                              codes[i][h], got, expected);
              }
            }
          }
      }
}

template <int B, bool BF>
void integers() {
  for (int is_signed = 0; is_signed < (B > 1 ? 2 : 1); ++is_signed) {
    using Cast = IntCast<B, BF>;
    every_code<B, Cast>((is_signed ? "i" : "u"), is_signed != 0, 0, BF, [&](uint32_t code, int r) {
      const int value = is_signed && code >> (B - 1) ? static_cast<int>(code) - (1 << B) : static_cast<int>(code);
      return (value + (is_signed ? 1 << (B - 1) : 0)) * static_cast<double>(Cast::gain(r)) + Cast::bias();
    });
  }
}

template <int B, bool BF>
void floats() {
  for (int e = 1; e <= B - 2; ++e) {
    if (!BF && e > 5) continue;
    const int m = B - 1 - e, bias = e == 1 ? 0 : (1 << (e - 1)) - 1;
    const FloatCast<B, BF> cast(true, e);
    every_code<B, FloatCast<B, BF>>("f", true, e, BF, [&](uint32_t code, int) {
      const int power = code >> m & ((1 << e) - 1), fraction = code & ((1 << m) - 1);
      // f16 has no number at its highest exponent: types that do go through bf16 (the launcher's "wide").
      if (!BF && e == 5 && power == 31) return static_cast<double>(NAN);
      const double size =
          power == 0 ? std::ldexp(fraction, 1 - bias - m) : std::ldexp((1 << m) + fraction, power - bias - m);
      return (code >> (B - 1) ? -size : size) / static_cast<double>(cast.unpower);
    });
  }
}

template <int B>
void all() {
  integers<B, false>();
  integers<B, true>();
  if constexpr (B >= 3) {
    floats<B, false>();
    floats<B, true>();
  }
}

}  // namespace

int main() {
  all<1>(), all<2>(), all<3>(), all<4>(), all<5>(), all<6>(), all<7>(), all<8>();
  std::printf("%lld checks, %lld failures\n", checks, failures);
  return failures != 0;
}
