// MARLIN's bytes (docs/internals/layouts/marlin.md) for stripes.cuh: codes of 4 and 8 bits, f16 scales in the order in
// which lanes read them, zero points as codes or the middle code. 64 columns by 16 k, a lane's words one after another:
//   (lane, word j of 4 bits, 2 j + h of 8) -> tile j (n = 16 j + ...) as unsigned_codes.cuh says
//   (lane, scale i of 8)                   -> n = 8 i + lane / 4
#pragma once
#include "cuda/gemm/kernels/stripes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

template <int Bits, bool BF, bool Zeros>
struct MarlinForm {
  static constexpr int kBits = Bits, kScaleBytes = 2, kRaw = 4;
  static constexpr bool kZeros = Zeros, kFused = false, kChannel = true, kScaled = !BF;
  using Offset = Offsets<Bits, BF>;

  // A lane's words of its four tiles are neighbours: one 16-byte load, or two.
  __device__ __forceinline__ static void fetch(uint32_t (&words)[Bits], uint32_t from, int lane) {
#pragma unroll
    for (int v = 0; v < Bits / 4; ++v) ld_shared_v4(words + 4 * v, from + lane * (4 * Bits) + 16 * v);
  }
  // Zero points stand in the order of the weights: those of columns n and n + 8 of tile j in the two halves of a masked
  // word.
  __device__ __forceinline__ static Offset offset(uint2 zeros, int j) {
    if (!Zeros) return Offset(both(1u << (Bits - 1)));
    if (Bits == 4) return Offset(zeros.x >> 4 * j & 0x000f000fu);
    return Offset((j < 2 ? zeros.x : zeros.y) >> 8 * (j & 1) & 0x00ff00ffu);
  }
  __device__ __forceinline__ static void expand(FragmentA<16>& a, const uint32_t (&words)[Bits], int j,
                                                const Offset& offset, uint32_t magic) {
    less_zero<Bits, BF, !Zeros>(a, words + j * (Bits / 4), offset, magic);
  }
  __device__ __forceinline__ static void scaled(FragmentA<16>& a, const uint32_t (&words)[Bits], int j, uint2 zeros,
                                                const uint32_t (&raw)[4], uint32_t magic) {
    expand(a, words, j, offset(zeros, j), magic);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = mul_x2<false>(a[i], __byte_perm(raw[j], 0, i & 1 ? 0x3232 : 0x1010));
  }
  // Eight scales, 8 columns apart, in one 16-byte load.
  __device__ __forceinline__ static void read_scales(uint32_t (&raw)[4], uint32_t from, int lane) {
    ld_shared_v4(raw, from + FragmentA<16>::row(lane, 0) * 16);
  }
  __device__ __forceinline__ static float scale(const uint32_t (&raw)[4], int i, bool) {
    return to_float(raw[i / 2] >> 16 * (i & 1) & 0xffffu, false);
  }
  __device__ __forceinline__ static float shift(const uint32_t (&)[4], int) { return 0; }
  __device__ __forceinline__ static float channel_scale(const unsigned char* scales, int n) {
    const int in32 = n & 31;
    return to_float(
        reinterpret_cast<const uint16_t*>(scales)[n - in32 + 8 * (in32 % 8 / 2) + 2 * (in32 / 8) + in32 % 2], false);
  }
};

}  // namespace lpq::cuda

#define LPQ_MARLIN(name, bits, bf, zeros)                     \
  using Form_##name = lpq::cuda::MarlinForm<bits, bf, zeros>; \
  LPQ_STRIPES(name, Form_##name, bf)
