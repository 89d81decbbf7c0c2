// TurboMind's bytes (docs/internals/layouts/turbomind.md, sm75 to sm90) for stripes.cuh. Integers: operand B, two 16x16
// fragments a store, half2 {s, t} a column and group. fp4 and fp8: operand A, one fragment a store, scales ue8m0 or 16
// bits. 64 columns by 16 k, stores of all lanes one after another:
//   integers: (store v, lane, word i of 4 bits, 2 i + h of 8) -> tile j = 2 v + i (n = 16 j + ...), unsigned_codes.cuh
//   floats:   (store j, lane, nibble i of each half, or byte i % 2 of each half of word i / 2) -> register i of tile j
#pragma once
#include "cuda/gemm/kernels/stripes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

template <int Bits, bool BF>
struct TurboMindInteger {
  static constexpr int kBits = Bits, kScaleBytes = 4, kRaw = 8;
  static constexpr bool kZeros = false, kFused = true, kChannel = false, kScaled = !BF;
  static constexpr int kMiddle = 1 << (Bits - 1);
  using Offset = Offsets<Bits, BF>;

  // Two tiles of 32 columns; a lane's words of each are neighbours.
  __device__ __forceinline__ static void fetch(uint32_t (&words)[Bits], uint32_t from, int lane) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const uint32_t at = from + t * (64 * Bits) + lane * (2 * Bits);
      if constexpr (Bits == 4) {
        const uint2 two = ld_shared_v2(at);
        words[2 * t] = two.x, words[2 * t + 1] = two.y;
      } else {
        ld_shared_v4(words + 4 * t, at);
      }
    }
  }
  __device__ __forceinline__ static Offset offset(uint2, int) { return Offset(both(kMiddle)); }
  __device__ __forceinline__ static void expand(FragmentA<16>& a, const uint32_t (&words)[Bits], int j,
                                                const Offset& offset, uint32_t magic) {
    less_zero<Bits, BF, true>(a, words + j * (Bits / 4), offset, magic);
  }
  __device__ __forceinline__ static void scaled(FragmentA<16>& a, const uint32_t (&words)[Bits], int j, uint2,
                                                const uint32_t (&raw)[8], uint32_t magic) {
    less_zero<Bits, BF, false>(a, words + j * (Bits / 4), Offset(0), magic);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = fma_x2<false>(a[i], __byte_perm(raw[2 * j + (i & 1)], 0, 0x1010),
                           __byte_perm(raw[2 * j + (i & 1)], 0, 0x3232));
  }
  // The pairs of columns n and n + 8 are neighbours.
  __device__ __forceinline__ static void read_scales(uint32_t (&raw)[8], uint32_t from, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint2 two = ld_shared_v2(from + j * 64 + FragmentA<16>::row(lane, 0) * 8);
      raw[2 * j] = two.x, raw[2 * j + 1] = two.y;
    }
  }
  __device__ __forceinline__ static float scale(const uint32_t (&raw)[8], int i, bool) {
    return to_float(raw[i] & 0xffffu, false);
  }
  // t + middle s, exactly but for one rounding to fp32.
  __device__ __forceinline__ static float shift(const uint32_t (&raw)[8], int i) {
    return fmaf(static_cast<float>(kMiddle), to_float(raw[i] & 0xffffu, false), to_float(raw[i] >> 16, false));
  }
  __device__ __forceinline__ static float channel_scale(const unsigned char*, int) { return 1; }
};

// Bits 4: e2m1 with ue8m0 scales; 8: e4m3 with 16-bit ones. Codes go where x's type has sign, exponent and mantissa;
// what the biases differ by is a power of two, in the scale (f16), or taken off at once (bf16, whose subnormal products
// fp32 loses).
template <int Bits, bool BF>
struct TurboMindFloat {
  static constexpr int kBits = Bits, kScaleBytes = Bits == 4 ? 1 : 2, kRaw = 4;
  static constexpr bool kZeros = false, kFused = false, kChannel = false, kScaled = false;
  struct Offset {};

  __device__ __forceinline__ static void fetch(uint32_t (&words)[Bits], uint32_t from, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (Bits == 4) words[j] = ld_shared(from + j * 128 + lane * 4);
      else {
        const uint2 two = ld_shared_v2(from + j * 256 + lane * 8);
        words[2 * j] = two.x, words[2 * j + 1] = two.y;
      }
    }
  }
  __device__ __forceinline__ static Offset offset(uint2, int) { return {}; }
  // Moves the codes whose lowest bit is bit `at` of either half so that it is bit `to`.
  __device__ __forceinline__ static uint32_t place(uint32_t word, int at, int to) {
    return at >= to ? word >> (at - to) : word << (to - at);
  }
  __device__ __forceinline__ static void expand(FragmentA<16>& a, const uint32_t (&words)[Bits], int j, const Offset&,
                                                uint32_t) {
    constexpr int kTo = Bits == 4 ? (BF ? 6 : 9) : (BF ? 4 : 7);
    constexpr uint32_t kKeep = (Bits == 4 ? 0x7u : 0x7fu) << kTo;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = Bits == 4 ? words[j] : words[2 * j + i / 2];
      const int at = Bits == 4 ? 4 * i : 8 * (i & 1);
      const uint32_t v = (word << (16 - Bits - at) & 0x80008000u) | (place(word, at, kTo) & both(kKeep));
      a[i] = BF ? fma_x2<true>(v, both(Bits == 4 ? 0x7e80u : 0x7b80u), 0x80008000u) : v;  // 2^126, 2^120
    }
  }
  __device__ __forceinline__ static void read_scales(uint32_t (&raw)[4], uint32_t from, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      raw[j] = Bits == 4 ? ld_shared_u16(from + j * 16 + FragmentA<16>::row(lane, 0) * 2)
                         : ld_shared(from + j * 32 + FragmentA<16>::row(lane, 0) * 4);
  }
  __device__ __forceinline__ static float scale(const uint32_t (&raw)[4], int i, bool bf16) {
    if constexpr (Bits == 4) {
      const uint32_t e = raw[i / 2] >> 8 * (i & 1) & 255;
      const float s = __uint_as_float(e == 0     ? 0x00400000u
                                      : e == 255 ? 0x7fc00000u
                                                 : e << 23);  // 2^(e - 127); 255: no number
      return BF ? s : s * 16384.0f;
    } else {
      const float s = to_float(raw[i / 2] >> 16 * (i & 1) & 0xffffu, bf16);
      return BF ? s : s * 256.0f;
    }
  }
  __device__ __forceinline__ static float shift(const uint32_t (&)[4], int) { return 0; }
  __device__ __forceinline__ static float channel_scale(const unsigned char*, int) { return 1; }
};

}  // namespace lpq::cuda

#define LPQ_TURBOMIND(name, form, bits, bf)      \
  using Form_##name = lpq::cuda::form<bits, bf>; \
  LPQ_STRIPES(name, Form_##name, bf)
