// Unsigned codes of 4 and 8 bits, less a zero point, as operand A in f16 or bf16. The words of a 16x16 tile:
//   4 bits: nibble i + 2 h + 4 e of words[0], 8 bits: byte i + 2 e of words[h] -> part e of register h + 2 i
#pragma once
#include "cuda/gemm/fragment.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// What is taken off the codes of rows n (low half of `zero`) and n + 8 (high half): ready to use, for one tile of 16
// columns.
template <int Bits, bool BF>
struct Offsets;
template <>
struct Offsets<4, false> {
  uint32_t low[2], high[2];  // 1024 + z, and -(64 + z) for codes that stand 16 times as high
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t l = zero | 0x64006400u, h = zero << 4 | 0xd400d400u;
    low[0] = __byte_perm(l, 0, 0x1010), low[1] = __byte_perm(l, 0, 0x3232);
    high[0] = __byte_perm(h, 0, 0x1010), high[1] = __byte_perm(h, 0, 0x3232);
  }
};
template <>
struct Offsets<4, true> {
  uint32_t minus[2];  // -(128 + z)
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = zero | 0xc300c300u;
    minus[0] = __byte_perm(v, 0, 0x1010), minus[1] = __byte_perm(v, 0, 0x3232);
  }
};
template <>
struct Offsets<8, false> {
  uint32_t plus[2];  // 1024 + z
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = zero | 0x64006400u;
    plus[0] = __byte_perm(v, 0, 0x1010), plus[1] = __byte_perm(v, 0, 0x3232);
  }
};
// Eight bits are one more than bf16 has: 128 + seven bits, and -256 or -128 by the eighth, exactly code - 128.
__device__ __forceinline__ uint32_t bytes_less_128(uint32_t v, uint32_t magic = 0x43004300u) {
  return fma_x2<true>((v & 0x007f007fu) | magic, 0x3f803f80u, (v & 0x00800080u) ^ 0xc380c380u);
}
template <>
struct Offsets<8, true> {
  uint32_t minus[2];  // 128 - z
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = bytes_less_128(zero) ^ 0x80008000u;
    minus[0] = __byte_perm(v, 0, 0x1010), minus[1] = __byte_perm(v, 0, 0x3232);
  }
};

// The registers of operand A from the codes of a 16x16 tile: words[0] (4 bits), or words[0] of rows n and words[1] of
// rows n + 8.
// Middle: the zero point is the middle code, which spares eight-bit codes of bf16 an addition.
// magic: 0x64006400 or 0x43004300 from a register. LOP3 takes one immediate: written as a constant, it would be two
// instructions.
template <int Bits, bool BF, bool Middle>
__device__ __forceinline__ void less_zero(FragmentA<16>& a, const uint32_t* words, const Offsets<Bits, BF>& o,
                                          uint32_t magic) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // rows n and n + 8
    if constexpr (Bits == 4 && !BF) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = sub_f16x2((q & 0x000f000fu) | magic, o.low[h]);
      a[2 + h] = fma_x2<false>((q & 0x00f000f0u) | magic, 0x2c002c00u, o.high[h]);
    } else if constexpr (Bits == 4) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = fma_x2<true>((q & 0x000f000fu) | magic, 0x3f803f80u, o.minus[h]);
      a[2 + h] = fma_x2<true>((q >> 4 & 0x000f000fu) | magic, 0x3f803f80u, o.minus[h]);
    } else if constexpr (!BF) {
      a[h] = sub_f16x2(__byte_perm(words[h], magic, 0x5250), o.plus[h]);
      a[2 + h] = sub_f16x2(__byte_perm(words[h], magic, 0x5351), o.plus[h]);
    } else {
      a[h] = bytes_less_128(words[h], magic);
      a[2 + h] = bytes_less_128(words[h] >> 8, magic);
      if (!Middle) {
        a[h] = fma_x2<true>(a[h], 0x3f803f80u, o.minus[h]);
        a[2 + h] = fma_x2<true>(a[2 + h], 0x3f803f80u, o.minus[h]);
      }
    }
  }
}

}  // namespace lpq::cuda
