// The casts of dequant.cuh for the sixteen pairs of a chunk at once, from fewer instructions, for the streaming kernel,
// which waits for these rather than
// for memory: nothing issues in the shadow of mma.sync (docs/internals/kernels/stream.md).
//
// Integers: as they are. Floats, a code being s r (sign, rest) and `low` where the lowest bit of r goes:
//   3 bits, and 4 times bf16: one multiplication puts two copies of a code where they do not meet, r at `low` and s at
//   15; one AND leaves
//     these. Codes of a word that stay out of each other's way are isolated together.
//   4 bits times f16: as bytes (FloatCast::kBytes), whose two pairs the compiler is kept from computing apart.
//   others: the code with s at bit 15 (S), then r from S or by a multiplication: (S & 0x8000) | (R & keep). Codes in
//   pieces are put
//     together at the top of the half first, the pieces' order there being their order in the code.
// Plain C++ that the host compiles, too (test/native/casts.cpp).
#pragma once
#include "cuda/gemm/dequant.cuh"

namespace lpq::cuda {

// Bits of `a` where `mask` has ones in both halves, else those of `b`.
LPQ_BOTH constexpr uint32_t chosen(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & twice(mask)) | (b & ~twice(mask));
}

// The compiler takes what is in `v` for what it is, and does not compute parts of it anew.
LPQ_BOTH void settled(uint32_t& v) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(v));
#else
  (void)v;
#endif
}

// Floats times bf16 leave out the multiplication by 2^(127 - bias): pairs are numbers near the least that bf16 holds,
// and activations are multiplied by 2^kFarPower where they are staged, so that products and sums are normal numbers of
// fp32. That bounds activations: from 2^64 on they count as infinite, and what is added up is a multiple of 2^-86 (of
// the activation times the float's value) at the coarsest.
constexpr int kFarPower = 64;
constexpr uint32_t kFar = twice((127 + kFarPower) << 7);  // as a pair of bf16

template <class Cast>
struct ChunkCast : Cast {
  static constexpr bool kFarPairs = false;
  using Cast::Cast;
  // The pairs 0..15 of a chunk whose words are `q`.
  LPQ_BOTH void pairs(const uint32_t* q, uint32_t (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = this->pair(q, i);
  }
};

template <int B, bool BF>
struct ChunkCast<FloatCast<B, BF>> : FloatCast<B, BF> {
  static constexpr bool kFarPairs = BF;
  using Base = FloatCast<B, BF>;
  int drop;                 // from bit 14 to where the rest's highest bit goes
  uint32_t copies[2], own;  // multipliers for codes at bits 0 and 4, and what is left of their products (4 bits, bf16)
  uint32_t times;           // 2^left

  LPQ_BOTH ChunkCast(bool is_signed, int exponent) : Base(is_signed, exponent), drop((BF ? 8 : 5) - exponent) {
    copies[0] = this->place | 1u << 12;
    copies[1] = this->place >> 4 | 1u << 8;
    own = this->keep | twice(0x8000);
    times = 1u << this->left;
    settled(times);  // a multiplier known to be a power of two would become a shift
    if constexpr (BF) {
      // 2^(127 - bias) is a bf16; less kFarPower.
      const uint32_t bits = (this->power << 16) - (static_cast<uint32_t>(kFarPower) << 23);
#ifdef __CUDA_ARCH__
      this->unpower = __uint_as_float(bits);
#else
      std::memcpy(&this->unpower, &bits, 4);
#endif
    }
  }

  // `sign` at bit 15 of `s`; `rest` where it belongs; both among other bits.
  LPQ_BOTH uint32_t put(uint32_t s, uint32_t rest) const { return (rest & this->keep) | (s & twice(0x8000)); }

  LPQ_BOTH void pairs(const uint32_t* q, uint32_t (&out)[16]) const {
    if constexpr (B == 3) {
      // One exponent bit: r is two bits at kLow, its copy for the sign begins at 13.
      constexpr int kLow = BF ? 6 : 9;
      constexpr uint32_t kOwn = twice(0x8000u | 3u << kLow), kTwo = 1u << kLow | 1u << 13;
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        if constexpr (BF) {
          // Codes at bits 0, 3, then 6, 9 and 12 moved down by 6.
          const uint32_t down = q[j] >> 6, low = q[j] & twice(0x003f), middle = down & twice(0x003f),
                         high = down & twice(0x01c0);
          out[5 * j] = low * kTwo & kOwn;
          out[5 * j + 1] = low * (kTwo >> 3) & kOwn;
          out[5 * j + 2] = middle * kTwo & kOwn;
          out[5 * j + 3] = middle * (kTwo >> 3) & kOwn;
          out[5 * j + 4] = high * (kTwo >> 6) & kOwn;
        } else {
          // Codes at bits 0 and 9, 3 and 12 moved down by 3, and 6.
          const uint32_t even = q[j] & twice(0x0e07), odd = q[j] >> 3 & twice(0x0e07), middle = q[j] & twice(0x01c0);
          out[5 * j] = even * kTwo & kOwn;
          out[5 * j + 1] = odd * kTwo & kOwn;
          out[5 * j + 2] = middle * (kTwo >> 6) & kOwn;
          out[5 * j + 3] = even * (kTwo >> 9) & kOwn;
          out[5 * j + 4] = odd * (kTwo >> 9) & kOwn;
        }
      }
      const uint32_t rest = chosen(0x8000, q[1], q[0] >> 1) >> (14 - kLow) & twice(3u << kLow);
      out[15] = rest | (q[2] & twice(0x8000));
    } else if constexpr (Base::kBytes) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = q[j];
        uint32_t lower = (word << 4 & twice(0x8080)) | (word * times & this->keep);
        uint32_t upper = (word & twice(0x8080)) | (word >> (4 - this->left) & this->keep);
        settled(lower), settled(upper);
        out[4 * j] = lower_bytes_up(lower);
        out[4 * j + 1] = lower_bytes_up(upper);
        out[4 * j + 2] = lower & twice(0xff00);
        out[4 * j + 3] = upper & twice(0xff00);
      }
    } else if constexpr (B == 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t down = q[j] >> 8;
        out[4 * j] = (q[j] & twice(0x000f)) * copies[0] & own;
        out[4 * j + 1] = (q[j] & twice(0x00f0)) * copies[1] & own;
        out[4 * j + 2] = (down & twice(0x000f)) * copies[0] & own;
        out[4 * j + 3] = (down & twice(0x00f0)) * copies[1] & own;
      }
    } else {
      using F = Fields<B>;
#pragma unroll
      for (int i = 0; i < F::kWhole * B; ++i) {
        const int at = F::offset(i);
        const uint32_t word = q[F::word(i)], s = word << (16 - B - at);
        out[i] = put(s, at <= Base::kLeast ? word * (this->place >> at) : s >> drop);
      }
      if constexpr (B == 5) {
        const uint32_t rest = chosen(0xe000, chosen(0xc000, chosen(0x8000, q[3], q[2] >> 1), q[1] >> 2), q[0] >> 3);
        out[15] = put(q[4], rest >> (drop + 1));
      }
      if constexpr (B == 6) {
#pragma unroll
        for (int y = 0; y < 4; ++y) {
          const uint32_t high = q[4 + y / 2], s = chosen(0xc000, y % 2 ? high : high << 2, q[y] >> 2);
          out[12 + y] = put(s, s >> drop);
        }
      }
      if constexpr (B == 7) {
#pragma unroll
        for (int y = 0; y < 2; ++y) {
          const uint32_t rest = chosen(0xf000, chosen(0xc000, q[3 * y + 2], q[3 * y + 1] >> 2), q[3 * y] >> 4);
          out[14 + y] = put(y ? q[6] : q[6] << 1, rest >> (drop + 1));
        }
      }
    }
  }
};

}  // namespace lpq::cuda
