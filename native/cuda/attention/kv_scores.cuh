// S = K Qᵀ of a unit: tokens are rows, queries the columns.
#pragma once
#include "cuda/attention/kv_fetch.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// (lane, reg) of q[tile][kc] -> dims kv_query_dim(kc, reg) and the next, column lane / 4 of a tile. Of two sets of
// tokens q[set][kc], query lane / 4 % 4 in the columns of the set and 0 in the others.
template <class T>
using KvQuery = uint32_t[T::kColumns * T::kSets][T::kDims / 16][2];
// Of step P, of a second set step kPasses + P.
template <class T>
using KvScores = float[T::kPasses][T::kColumns][4];
// Operands B of the products over 16 dims: one of 16, or two of 8 for two sets.
template <class T>
using KvOperands = uint32_t[T::kColumns][T::kSets][2];

// Of queries times `low` and `high`, of dims 16 kc and 16 kc + 8 onwards.
template <class T, class Scaled>
__device__ __forceinline__ void kv_spread(const KvQuery<T>& q, int n, int kc, const Scaled& scaled,
                                          uint32_t (&b)[T::kSets][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if constexpr (T::kSets == 1) {
      b[0][half] = scaled(q[n][kc][half], half);
    } else {
      b[half][0] = scaled(q[0][kc][half], half), b[half][1] = scaled(q[1][kc][half], half);
    }
}

// Sums of a product with queries, whose columns are those of the first set, for this lane's columns.
template <class T>
__device__ __forceinline__ float kv_of_query(float v, int row) {
  const int t = static_cast<int>(threadIdx.x & 3);
  return __shfl_sync(0xffffffffu, v, 4 * row + (T::kSets == 2 ? t & 1 : t));
}

// Code number J of words as operand A number S of 16 dims. `code`: what makes a register of a word and a Constant.
template <class T, int J, int S, class Code>
__device__ __forceinline__ void kv_operand(const uint32_t (&word)[4], const Code& code, uint32_t (&to)[4]) {
  if constexpr (T::kSets == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = code(word[i], Constant<J>());
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      to[i] = code(word[2 * S + i], Constant<J>()), to[2 + i] = code(word[2 * S + i], Constant<J + T::kPasses>());
  }
}

// Keys by channel. Scales multiply Q, one product a group, channel and query; zeros of keys are a product of their own.
// Codes: (lane, reg) of operand A number (kc, J) -> token 32 J + lane / 4 + 8 (reg % 2) of its sixteen, dim 16 kc + 8
// (reg / 2) + 2 (lane % 4) and the next; of two sets, number (kc, s, J) -> token 32 (J + kPasses (reg / 2)) + ..., dim
// 16 kc + 8 s + 2 (lane % 4). Scales and zeros of two dims lie side by side, so that what is loaded is operand A of the
// zeros' product: rows 8 to 15 are zeros, those before are not looked at.
template <class T>
__device__ __forceinline__ void kv_scores_channels(const KvDecodeArgs& a, const KvLane<T>& lane, const KvQuery<T>& q,
                                                   KvScores<T>& score) {
  constexpr int B = T::kKeyBits;
  const int shared = kv_key_shared<T>(a);
  float zero[T::kColumns][4] = {};
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4], numbers[4];
    KvOperands<T> b;
    const auto add_zeros = [&] {
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(zero[n], numbers, q[n][kc][0], q[n][kc][1]);
    };
    ldmatrix_x4(word, lane.keys_at(0, kc));
    if constexpr (T::kGroups > 1) {  // a row a group
      ld_shared_v2(numbers[0], numbers[1], lane.key_zeros + 64 * kc),
          ld_shared_v2(numbers[2], numbers[3], lane.key_zeros + 64 * kc + 32);
      add_zeros();
    }
    each<0, T::kPasses>([&](auto step) {
      constexpr int J = decltype(step)::value;
      if constexpr (J % T::kGroupSteps == 0) {
        const uint32_t at =
            lane.key_scales + static_cast<uint32_t>((J / T::kGroupSteps >> shared) * T::kChannelLine + 64 * kc);
        ld_shared_v2(numbers[0], numbers[1], at), ld_shared_v2(numbers[2], numbers[3], at + 32);
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n)
          kv_spread<T>(q, n, kc, [&](uint32_t x, int half) { return mul_x2<false>(x, numbers[2 * half]); }, b[n]);
        if constexpr (T::kGroups == 1) add_zeros();
      }
      each<0, T::kSets>([&](auto set) {
        constexpr int S = decltype(set)::value;
        uint32_t codes[4];
        kv_operand<T, J, S>(word, [](uint32_t w, auto j) { return codes_of<B, decltype(j)::value>(w); }, codes);
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(score[J][n], codes, b[n][S][0], b[n][S][1]);
      });
    });
  }
  each<0, T::kPasses>([&](auto step) {
    constexpr int J = decltype(step)::value;
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) {
      float z[2];
#pragma unroll
      for (int c = 0; c < 2; ++c)
        z[c] = (T::kGroups == 1 && T::kSets == 1
                    ? zero[n][2 + c]
                    : kv_of_query<T>(zero[n][2 + c], J / T::kGroupSteps + T::kSetGroups * kv_set<T>())) *
               a.scale;
#pragma unroll
      for (int i = 0; i < 4; ++i) score[J][n][i] = __fmaf_rn(score[J][n][i], a.scale * Field<B, J>::kBack, z[i & 1]);
    }
  });
}

// Keys by token: sums over a group of dims are scaled as they end; zeros multiply sums of queries, which are a product
// with ones.
template <class T>
__device__ __forceinline__ void kv_scores_tokens(const KvDecodeArgs& a, const KvLane<T>& lane, const KvQuery<T>& q,
                                                 KvScores<T>& score) {
  constexpr int B = T::kKeyBits;
  constexpr uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
  float part[T::kPasses][T::kColumns][4] = {}, sum[T::kColumns][4] = {};
  int group = 0;
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4];
    KvOperands<T> b;
    ldmatrix_x4(word, lane.keys_at(0, kc));
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) {
      mma_m16n8k16<false>(sum[n], ones, q[n][kc][0], q[n][kc][1]);
      kv_spread<T>(q, n, kc, [](uint32_t x, int) { return x; }, b[n]);
    }
    each<0, T::kPasses * T::kSets>([&](auto step) {
      constexpr int J = decltype(step)::value / T::kSets, S = decltype(step)::value % T::kSets;
      uint32_t codes[4];
      kv_operand<T, J, S>(word, [](uint32_t w, auto j) { return codes_of<B, decltype(j)::value>(w); }, codes);
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(part[J][n], codes, b[n][S][0], b[n][S][1]);
    });
    if (kc % 2 == 0 || (16 * kc + 16) % a.key_group != 0) continue;
    if constexpr (T::kSets == 2) sum[0][0] = kv_of_query<T>(sum[0][0], 0), sum[0][1] = kv_of_query<T>(sum[0][1], 0);
    each<0, T::kPasses>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const KvNumbers numbers = kv_numbers<T>(lane, group, J);
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score[J][n][i] = __fmaf_rn(part[J][n][i] * (a.scale * Field<B, J>::kBack), numbers.scale[i >> 1],
                                     __fmaf_rn(sum[n][i & 1] * a.scale, numbers.zero[i >> 1], score[J][n][i]));
          part[J][n][i] = 0;
        }
    });
    ++group;
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
  }
}

// Keys whose words hold dims of one token. (lane, reg) of operand A number kc = X k + x, X = 16 / bits -> token 2 (lane
// / 4) + reg % 2 of step j, dim 16 X k + 2 X (lane % 4) + 2 x + 8 X (reg / 2) and the next: fields of one word, in the
// order 75316420 of 4 bits; bytes are spread by prmt. Fields at bit 0 and at bit 4 of a half have sums of their own.
template <class T>
__device__ __forceinline__ void kv_scores_words(const KvDecodeArgs& a, const KvLane<T>& lane, const KvQuery<T>& q,
                                                const float (&sums)[T::kColumns][4], KvScores<T>& score) {
  constexpr int X = T::kKeyCodes, B = T::kKeyBits;
  KvScores<T> second = {};
  const auto codes_at = [](uint32_t word, auto x) {
    if constexpr (B == 8) return two_bytes<decltype(x)::value>(word);
    else return codes_of<B, decltype(x)::value>(word);
  };
#pragma unroll
  for (int k = 0; k < T::kDims / 16 / X; ++k)
#pragma unroll
    for (int p = 0; p < T::kPasses; ++p) {
      uint32_t word[T::kSets][4];
#pragma unroll
      for (int s = 0; s < T::kSets; ++s) ldmatrix_x4(word[s], lane.keys_at(p + s * T::kPasses, k));
      each<0, X>([&](auto step) {
        constexpr int x = decltype(step)::value;
#pragma unroll
        for (int half = 0; half < T::kSets; ++half) {
          uint32_t codes[4];
          if constexpr (T::kSets == 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[i] = codes_at(word[0][i], step);
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[i] = codes_at(word[i >> 1][2 * half + (i & 1)], step);
          }
#pragma unroll
          for (int n = 0; n < T::kColumns; ++n) {
            uint32_t b[2] = {q[n][X * k + x][0], q[n][X * k + x][1]};
            if constexpr (T::kSets == 2) b[0] = q[0][X * k + x][half], b[1] = q[1][X * k + x][half];
            mma_m16n8k16<false>(B == 4 && x % 2 ? second[p][n] : score[p][n], codes, b[0], b[1]);
          }
        }
      });
    }
#pragma unroll
  for (int p = 0; p < T::kPasses; ++p) {
    const KvNumbers numbers = kv_numbers<T>(lane, 0, p);
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float codes = B == 4 ? __fmaf_rn(second[p][n][i], Field<B, 1>::kBack, score[p][n][i] * Field<B, 0>::kBack)
                                   : score[p][n][i] * Field<B, 0>::kBack;
        score[p][n][i] =
            __fmaf_rn(codes * a.scale, numbers.scale[i >> 1], sums[n][i & 1] * a.scale * numbers.zero[i >> 1]);
      }
  }
}

}  // namespace lpq::cuda
