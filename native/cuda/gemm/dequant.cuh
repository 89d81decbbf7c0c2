// Fast casts of the packed format "tilus" (docs/internals/layouts/tilus.md): the words of one lane's chunk -> pairs of
// f16 or bf16, by shifts, three-input logic and multiplications by powers of two alone. Plain C++ that the host
// compiles too, so that every code in every position is tested there; on the device (x & m) ^ f is one LOP3, and left
// shifts may run as multiplications beside the logic pipe.
//
// A pair is not the code's value but a value in proportion to it; the factors below turn sums of it into sums of
// values:
//   integers: pair = (code ^ sign) * gain + offset; kernels take offset and zero point out through the sums of the
//   activations
//     f16:  the code as the mantissa of a subnormal number: gain 2^(shift-24), offset 0; Whole: or-ed into 1024: gain
//     2^shift, offset 1024
//     bf16: the code or-ed into the mantissa of 128: gain 2^shift, offset 128; 8 bits: gain 1, offset -128 `shift`
//     depends on the row class (n' div 8): leaving some codes where they lie saves shifts
//   floats: sign and the rest put where f16 or bf16 have theirs
//     f16:  value * 2^(bias - 15); bf16: the value, after a multiplication by 2^(127 - bias)
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LPQ_BOTH __host__ __device__ __forceinline__
#else
#define LPQ_BOTH inline
#endif

namespace lpq::cuda {

// Both halves of a word.
LPQ_BOTH constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

// a * b + c for pairs of bf16, one rounding. The host's version is for exact results only (all of those here are).
LPQ_BOTH uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const uint32_t bits[3] = {(a >> 16 * half) << 16, (b >> 16 * half) << 16, (c >> 16 * half) << 16};
    float v[3];
    std::memcpy(v, bits, sizeof(v));
    const float sum = static_cast<float>(static_cast<double>(v[0]) * v[1] + v[2]);
    uint32_t pattern;
    std::memcpy(&pattern, &sum, 4);
    result |= (pattern >> 16) << 16 * half;
  }
  return result;
#endif
}

template <int B>
struct Fields {
  static constexpr int kWhole = 16 / B;           // whole codes in a half-word
  static constexpr int kSplit = 16 - kWhole * B;  // bits above them, of codes in pieces
  // Where pair i lies whole.
  LPQ_BOTH static constexpr bool whole(int i) { return i < kWhole * B; }
  LPQ_BOTH static constexpr int word(int i) { return i / kWhole; }
  LPQ_BOTH static constexpr int offset(int i) { return i % kWhole * B; }
};

// The lower byte of each half becomes its upper one.
LPQ_BOTH uint32_t lower_bytes_up(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, 0x2404);
#else
  return word << 8 & twice(0xff00);
#endif
}

LPQ_BOTH constexpr uint32_t moved(uint32_t word, int right) { return right >= 0 ? word >> right : word << -right; }

// Bits [from, from + count) of both halves of `word`, put at bit `to`.
LPQ_BOTH constexpr uint32_t piece(uint32_t word, int from, int count, int to) {
  return moved(word, from - to) & twice(((1u << count) - 1) << to);
}

// A code in pieces, at bit `to` of both halves, nothing else in them.
template <int B>
LPQ_BOTH uint32_t joined(const uint32_t* q, int i, int to) {
  if constexpr (B == 3) return piece(q[0], 15, 1, to) | piece(q[1], 15, 1, to + 1) | piece(q[2], 15, 1, to + 2);
  if constexpr (B == 5)
    return piece(q[0], 15, 1, to) | piece(q[1], 15, 1, to + 1) | piece(q[2], 15, 1, to + 2) |
           piece(q[3], 15, 1, to + 3) | piece(q[4], 15, 1, to + 4);
  if constexpr (B == 6) {
    const int y = i - 12;
    return piece(q[y], 12, 4, to) | piece(q[4 + y / 2], 12 + 2 * (y % 2), 2, to + 4);
  }
  if constexpr (B == 7) {
    const int y = i - 14;
    return piece(q[3 * y], 14, 2, to) | piece(q[3 * y + 1], 14, 2, to + 2) | piece(q[3 * y + 2], 14, 2, to + 4) |
           piece(q[6], 14 + y, 1, to + 6);
  }
  return 0;
}

// Integers of B bits as f16 (BF = false) or bf16.
template <int B, bool BF, bool Whole = false>
struct IntCast {
  static constexpr bool kSums = true;  // offsets and zero points are taken out through sums of the activations
  static constexpr bool kTwoStep = BF && B == 8;
  // How far a row class leaves its codes from bit 0. Codes of 1, 2 and 4 bits of class r lie at offsets that are equal
  // modulo 4 B; of 3 bits, seven shifts a chunk remain of twelve.
  LPQ_BOTH static constexpr int shift(int r) {
    return B == 1 ? r : B == 2 ? (BF ? 2 * (r & 1) : 2 * r) : B == 3 ? 3 * (r & 1) : B == 4 && !BF ? 4 * (r & 1) : 0;
  }
  LPQ_BOTH static constexpr float gain(int r) {
    const float scale = static_cast<float>(1 << shift(r));
    return BF || Whole ? scale : scale * 0x1p-24f;
  }
  LPQ_BOTH static constexpr float ungain(int r) { return 1.0f / gain(r); }
  LPQ_BOTH static constexpr float bias() { return !BF ? (Whole ? 1024.0f : 0.0f) : B == 8 ? -128.0f : 128.0f; }
  static constexpr int kStarts = B == 1 || (B == 2 && !BF) ? 2 : 1;  // 1: row classes r and r + 2 have the same gain

  uint32_t flip;  // the sign bit of signed types, in both halves at bit B - 1, else 0: two's complement becomes code +
                  // 2^(B-1)

  // One bit has no sign; `flip` is what it is or-ed into for bf16. That, too, must be in a register (logic takes one
  // constant), and the assembler sees through constants: hence a choice.
  static constexpr bool kOneBit = BF && B == 1;

  // Of 3 bits as bf16, what a pair is xor-ed with for even and odd row classes: left to the compiler it is made anew
  // for each pair in some kernels (not in those with Whole).
  static constexpr bool kMade = BF && B == 3 && !Whole;
  uint32_t made[2] = {0, 0};

  LPQ_BOTH IntCast(bool is_signed, int /*exponent*/)
      : flip(kOneBit              ? (is_signed ? 0 : twice(0x4300))
             : B > 1 && is_signed ? twice(1u << (B - 1))
                                  : 0) {
#ifdef __CUDA_ARCH__
    // A value in a register, or it would be selected anew for each packed block.
    if constexpr (B > 1 || kOneBit) asm volatile("" : "+r"(flip));
#endif
    if constexpr (kMade) {
      for (int j = 0; j < 2; ++j) {
        made[j] = twice(0x4300) ^ (flip << shift(j));
#ifdef __CUDA_ARCH__
        asm volatile("" : "+r"(made[j]));
#endif
      }
    }
  }

  LPQ_BOTH uint32_t pair(const uint32_t* q, int i) const {
    using F = Fields<B>;
    if constexpr (kTwoStep) {
      // 128 + low seven bits, and -128 or -256 by the eighth, which is the lowest bit of the exponent: code - 128.
      const uint32_t v = q[F::word(i)] >> F::offset(i);
      const uint32_t low = (v & twice(0x007f)) ^ twice(0x4300);
      const uint32_t high = (v & twice(0x0080)) ^ (twice(0xc380) ^ flip);
      return fma_bf16x2(low, twice(0x3f80), high);
    } else {
      constexpr uint32_t kMagic = BF ? twice(0x4300) : Whole ? twice(0x6400) : 0;
      const int s = shift(i & 3);
      const uint32_t keep = twice(((1u << B) - 1) << s);
      const uint32_t v = F::whole(i) ? moved(q[F::word(i)], F::offset(i) - s) : joined<B>(q, i, s);
      return (v & keep) ^ (kMade ? made[i & 1] : kOneBit ? flip : kMagic ^ (flip << s));
    }
  }
};

// Floats of B bits: sign, `exponent` bits, the rest mantissa. f16 takes up to 5 exponent bits, where 5 have infinities
// as f16's own (f8e5m2); bf16 takes all.
template <int B, bool BF>
struct FloatCast {
  static constexpr bool kSums = false;
  static constexpr int kStarts = 1;
  static constexpr int kLeast =
      (BF ? 8 : 11) - B + 1;  // least bit number of the mantissa's lowest bit (one exponent bit)
  static constexpr int kFirst = (kLeast + B) / B * B;  // codes from here on are moved down by as much first
  // Four bits as f16 are one byte, the upper one: all four bytes of a word, a code each, are made at once.
  static constexpr bool kBytes = B == 4 && !BF;
  uint32_t place, keep, power;  // power: 2^(127 - bias) as a pair of bf16
  int left;                     // kBytes: how far a byte's lower code without its sign goes left
  float unpower;

  LPQ_BOTH FloatCast(bool, int exponent) {
    const int low = (BF ? 8 : 11) - B + exponent;
    place = 1u << low;
    keep = twice(((1u << (B - 1)) - 1) << low);
    left = exponent - 1;
    if (kBytes) keep = twice(0x0101) * (7u << left);
    const int bias = exponent == 1 ? 0 : (1 << (exponent - 1)) - 1;
    power = twice(static_cast<uint32_t>(254 - bias) << 7);
    const uint32_t bits = static_cast<uint32_t>(127 + 15 - bias) << 23;
    if (BF) unpower = 1.0f;
    else {
#ifdef __CUDA_ARCH__
      unpower = __uint_as_float(bits);
#else
      std::memcpy(&unpower, &bits, 4);
#endif
    }
  }

  LPQ_BOTH uint32_t pair(const uint32_t* q, int i) const {
    using F = Fields<B>;
    if constexpr (kBytes) {
      const uint32_t word = q[F::word(i)];
      const bool upper = F::offset(i) % 8 == 4;
      const uint32_t rest = (upper ? word >> (4 - left) : word << left) & keep;
      const uint32_t bytes = ((upper ? word : word << 4) & twice(0x8080)) | rest;
      return F::offset(i) >= 8 ? bytes & twice(0xff00) : lower_bytes_up(bytes);
    }
    const bool whole = F::whole(i);
    const int at = whole ? F::offset(i) : 0;
    const uint32_t word = whole ? q[F::word(i)] : joined<B>(q, i, 0);
    const uint32_t sign = (word << (16 - B - at)) & twice(0x8000);
    const int down = at < kFirst ? 0 : at - kFirst <= kLeast ? kFirst : at;
    // What the product carries from one half into the other lies outside `keep`.
    const uint32_t rest = ((word >> down) * (place >> (at - down))) & keep;
    const uint32_t value = rest | sign;
    return BF ? fma_bf16x2(value, power, twice(0x8000)) : value;
  }
};

}  // namespace lpq::cuda
