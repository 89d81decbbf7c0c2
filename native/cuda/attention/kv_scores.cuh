// S = K Qᵀ of a unit: tokens are rows, queries the 8 columns.
#pragma once
#include "cuda/attention/kv_fetch.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

template <class T>
using KvQuery = uint32_t[T::kDims / 16][2];
template <class T>
using KvScores = float[T::kSteps][4];

// Keys by channel. Scales multiply Q, one product a group, channel and query; zeros of keys are a product of their own,
// a row a group.
// Codes: (lane, reg) of operand A number (kc, J) -> token 32 J + 2 (lane / 4) + reg % 2 of its sixteen, dim 16 kc + 8
// (reg / 2) + 2 (lane % 4) and the next.
template <class T>
__device__ __forceinline__ void kv_scores_channels(const KvDecodeArgs& a, const KvUnit<T>& unit, const KvQuery<T>& q,
                                                   KvScores<T>& score) {
  constexpr int R = T::kSteps, B = T::kKeyBits;
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, matrix = lane >> 3,
            row = (lane & 7) + 8 * (matrix & 1);
  const int shared =
      T::kForm == KvForm::kWide ? 0 : a.key_group >> 6;  // steps of two that share a group: log2 of how many
  float zero[4] = {};
  const uint32_t own =
      unit.key_numbers() + static_cast<uint32_t>(((g & (T::kGroups - 1)) >> shared) * T::kDims * 4 + t * 8 + 4);
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4], b[2];
    ldmatrix_x4(word, unit.key_chunk(row, 2 * kc + (matrix >> 1)));
    if constexpr (T::kGroups > 1) {
      const uint32_t low = ld_shared(own + 64 * kc), high = ld_shared(own + 64 * kc + 32),
                     rows[4] = {low, low, high, high};
      mma_m16n8k16<false>(zero, rows, q[kc][0], q[kc][1]);
    }
    each<0, R>([&](auto step) {
      constexpr int J = decltype(step)::value;
      if constexpr (J % T::kGroupSteps == 0) {
        const uint32_t at = unit.key_numbers() +
                            static_cast<uint32_t>((J / T::kGroupSteps >> shared) * T::kDims * 4 + (8 * kc + t) * 8);
        const uint2 low = ld_shared_v2(at), high = ld_shared_v2(at + 32);
        b[0] = mul_x2<false>(q[kc][0], low.x), b[1] = mul_x2<false>(q[kc][1], high.x);
        if constexpr (T::kGroups == 1) {
          const uint32_t rows[4] = {low.y, low.y, high.y, high.y};
          mma_m16n8k16<false>(zero, rows, q[kc][0], q[kc][1]);
        }
      }
      const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]),
                                 codes_of<B, J>(word[3])};
      mma_m16n8k16<false>(score[J], codes, b[0], b[1]);
    });
  }
  each<0, R>([&](auto step) {
    constexpr int J = decltype(step)::value;
    float z[2];
#pragma unroll
    for (int c = 0; c < 2; ++c)
      z[c] = (T::kGroups == 1 ? zero[c] : __shfl_sync(0xffffffffu, zero[c], 4 * (J / T::kGroupSteps) + t)) * a.scale;
#pragma unroll
    for (int i = 0; i < 4; ++i) score[J][i] = __fmaf_rn(score[J][i], a.scale * Field<B, J>::kBack, z[i & 1]);
  });
}

// Keys by token: sums over a group of dims are scaled as they end; zeros multiply sums of queries, which are a product
// with ones.
template <class T>
__device__ __forceinline__ void kv_scores_tokens(const KvDecodeArgs& a, const KvUnit<T>& unit, const KvQuery<T>& q,
                                                 KvScores<T>& score) {
  constexpr int R = T::kSteps, B = T::kKeyBits;
  constexpr uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3, row = (lane & 7) + 8 * (matrix & 1);
  float part[R][4] = {}, sum[4] = {};
  int group = 0;
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4];
    ldmatrix_x4(word, unit.key_chunk(row, 2 * kc + (matrix >> 1)));
    mma_m16n8k16<false>(sum, ones, q[kc][0], q[kc][1]);
    each<0, R>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]),
                                 codes_of<B, J>(word[3])};
      mma_m16n8k16<false>(part[J], codes, q[kc][0], q[kc][1]);
    });
    if (kc % 2 == 0 || (16 * kc + 16) % a.key_group != 0) continue;
    each<0, R>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const KvNumbers n = kv_numbers<T>(unit.key_numbers(), group, J);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[J][i] = __fmaf_rn(part[J][i] * (a.scale * Field<B, J>::kBack), n.scale[i >> 1],
                                __fmaf_rn(sum[i & 1] * a.scale, n.zero[i >> 1], score[J][i]));
        part[J][i] = 0;
      }
    });
    ++group;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
  }
}

// Keys whose words hold dims of one token. (lane, reg) of operand A number kc = X k + x, X = 16 / bits -> token 2 (lane
// / 4) + reg % 2 of step j, dim 16 X k + 2 X (lane % 4) + 2 x + 8 X (reg / 2) and the next: fields of one word, in the
// order 75316420 of 4 bits; bytes are spread by prmt. Fields at bit 0 and at bit 4 of a half have sums of their own.
template <class T>
__device__ __forceinline__ void kv_scores_words(const KvDecodeArgs& a, const KvUnit<T>& unit, const KvQuery<T>& q,
                                                const float (&sums)[2], KvScores<T>& score) {
  constexpr int X = T::kKeyCodes, B = T::kKeyBits;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3, row = (lane & 7) + 8 * (matrix & 1);
  float second[T::kSteps][4] = {};
#pragma unroll
  for (int k = 0; k < T::kDims / 16 / X; ++k)
#pragma unroll
    for (int j = 0; j < T::kSteps; ++j) {
      uint32_t word[4];
      ldmatrix_x4(word, unit.key_chunk(16 * j + row, 2 * k + (matrix >> 1)));
      each<0, X>([&](auto step) {
        constexpr int x = decltype(step)::value;
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (B == 8) codes[i] = two_bytes<x>(word[i]);
          else codes[i] = codes_of<B, x>(word[i]);
        }
        mma_m16n8k16<false>(B == 4 && x % 2 ? second[j] : score[j], codes, q[X * k + x][0], q[X * k + x][1]);
      });
    }
#pragma unroll
  for (int j = 0; j < T::kSteps; ++j) {
    const KvNumbers n = kv_numbers<T>(unit.key_numbers(), 0, j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float codes = B == 4 ? __fmaf_rn(second[j][i], Field<B, 1>::kBack, score[j][i] * Field<B, 0>::kBack)
                                 : score[j][i] * Field<B, 0>::kBack;
      score[j][i] = __fmaf_rn(codes * a.scale, n.scale[i >> 1], sums[i & 1] * a.scale * n.zero[i >> 1]);
    }
  }
}

}  // namespace lpq::cuda
