// Where interleave_gates (interleave_gates.h) puts what: on the CPU and in its kernels.
#pragma once
#include <cstdint>

#include "lpq/everywhere.h"

namespace lpq {

// Where bit `bit` of pair i (of 16) of a chunk lies (docs/internals/layouts/tilus.md): 32 words and bit of the word's
// lower half.
LPQ_EVERYWHERE constexpr int pair_bit(int bits, int i, int bit) {
  const int whole = 16 / bits, left = i - whole * bits, top = 16 - (16 - whole * bits);
  if (left < 0) return 32 * (i / whole) + i % whole * bits + bit;
  if (bits == 6) return bit < 4 ? 32 * left + top + bit : 32 * (4 + left / 2) + top + 2 * (left % 2) + bit - 4;
  if (bits == 7) return bit < 6 ? 32 * (3 * left + bit / 2) + top + bit % 2 : 32 * 6 + top + left;
  return 32 * bit + top;
}

// The words of a chunk of a gate and of up become those of two chunks: rows 16 s to 16 s + 15 of either.
template <int Bits>
LPQ_EVERYWHERE constexpr void interleave_chunk(const uint32_t (&gate)[Bits], const uint32_t (&up)[Bits], int s,
                                               uint32_t (&to)[Bits]) {
  for (int w = 0; w < Bits; ++w) to[w] = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 0; i < 16; ++i) {
    // Pair i is of rows 8 (i % 4) to 8 (i % 4) + 7.
    const int from = (i & ~3) + (i >> 1 & 1);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int bit = 0; bit < Bits; ++bit) {
      const int low = pair_bit(Bits, from, bit), high = pair_bit(Bits, from + 2, bit), at = pair_bit(Bits, i, bit);
      const uint32_t a = i & 1 ? up[low / 32] : gate[low / 32], b = i & 1 ? up[high / 32] : gate[high / 32];
      const uint32_t both = s ? b >> high % 32 : a >> low % 32;
      to[at / 32] |= (both & 0x00010001u) << at % 32;
    }
  }
}

// The numbers of a lane's four row classes, `next` apart, in a block of a gate and, `up` further on, in one of up
// become those of two blocks that are `second` apart. `to` may be `from` where `second` is `up`: all are read before
// any is written.
template <class Number>
LPQ_EVERYWHERE constexpr void interleave_classes(const Number* from, Number* to, long long up, long long second,
                                                 int next) {
  const Number gates[4] = {from[0], from[next], from[2 * next], from[3 * next]};
  const Number ups[4] = {from[up], from[up + next], from[up + 2 * next], from[up + 3 * next]};
  to[0] = gates[0], to[next] = ups[0], to[2 * next] = gates[1], to[3 * next] = ups[1];
  to[second] = gates[2], to[second + next] = ups[2], to[second + 2 * next] = gates[3], to[second + 3 * next] = ups[3];
}

}  // namespace lpq
