// Codes of packed words as operands of tensor cores.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/unroll.cuh"

namespace lpq::cuda {

// Codes number J of the two words of a register, as halves code 2^-kDown: a field that ends below bit 11 of a half is a
// number that counts units of 2^-24, subnormal or of the first normal binade, so that a mask is all it takes. Tensor
// cores multiply such numbers exactly; the power of two is taken back from sums. Two words of 4-bit codes side by side
// are a register in the order 75316420.
template <int BITS, int J>
struct Field {
  static constexpr bool kShift = BITS * J >= 8;  // so that code J of the upper byte is as code J of the lower
  static constexpr int kAt = kShift ? BITS * J - 8 : BITS * J, kDown = 24 - kAt;
  static constexpr uint32_t kMask = ((1u << BITS) - 1) << kAt;
#ifdef LPQ_KV_CONVERTED
  static constexpr float kBack = 1;
#else
  static constexpr float kBack = static_cast<float>(1 << kDown);
#endif
};
template <int BITS, int J>
__device__ __forceinline__ uint32_t codes_of(uint32_t word) {
#ifdef LPQ_KV_CONVERTED  // of the ablation in docs/internals/kernels/attention.md: integers become halves one by one
  constexpr uint32_t mask = (1u << BITS) - 1;
  return from_float<false>(static_cast<float>(word >> BITS * J & mask)) |
         static_cast<uint32_t>(from_float<false>(static_cast<float>(word >> (BITS * J + 16) & mask))) << 16;
#else
  using F = Field<BITS, J>;
  return (F::kShift ? word >> 8 : word) & (F::kMask * 0x10001u);
#endif
}

// Bytes 2 X and 2 X + 1, each with a byte of 0 above.
template <int X>
__device__ __forceinline__ uint32_t two_bytes(uint32_t v) {
  return __byte_perm(v, 0, X == 0 ? 0x4140 : 0x4342);
}

// First of two neighbouring dims that this lane's register `half` of operand B number kc stands for, (lane, half) ->
// (k, n = lane / 4).
// turbomind: as words of its dims lie one after another, Q is taken in their order (TurboMind, Algorithm 1; X = 16 /
// bits).
template <class T>
__device__ __forceinline__ int kv_query_dim(int kc, int half) {
  const int t = static_cast<int>(threadIdx.x & 3);
  if constexpr (T::kInWords) {
    constexpr int X = T::kKeyCodes;
    return 16 * (kc / X * X) + 2 * X * t + 2 * (kc % X) + 8 * X * half;
  }
  return 16 * kc + 8 * half + 2 * t;
}

// Row `row` (0 to 15) of operand A number m of O = Vᵀ P -> dim of the head.
template <class T>
__device__ __forceinline__ int kv_value_dim(int m, int row) {
  if constexpr (T::kInWords) {
    const int word = 16 * (m / T::kCodes) + row, j = m % T::kCodes;
    return T::kBits == 4 ? 8 * (word >> 1) + (word & 1) + 2 * j : 2 * word + j;
  }
  return 16 * m + row;
}

// Powers of two that rows 0 to 7 and 8 to 15 of operand A number m were made smaller by.
template <class T, int M>
struct ValueField {
  static constexpr int kFirst = 16 * M, kInChunk = kFirst % T::kChunk;
  static constexpr int kLow = T::kInWords ? M % T::kCodes : T::kNarrow ? 2 * M : kInChunk / T::kChunkWords;
  static constexpr int kHigh = T::kNarrow ? kLow + 1 : kLow;
  static constexpr float kBackLow = Field<T::kBits, kLow>::kBack, kBackHigh = Field<T::kBits, kHigh>::kBack;
};

}  // namespace lpq::cuda
