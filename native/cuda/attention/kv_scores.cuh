// S = K Qᵀ of a unit: tokens are rows, queries the columns.
#pragma once
#include "cuda/attention/handed.cuh"
#include "cuda/attention/kv_fetch.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// (lane, reg) of held[tile][kc] -> dims kv_query_dim(kc, reg) and the next, column lane / 4 of a tile.
template <class T>
struct KvQuery {
  uint2 held[T::kColumns][T::kDims / 16];
  __device__ __forceinline__ uint2 operator()(int tile, int kc) const { return held[tile][kc]; }
};
template <class T>
using KvScores = float[T::kSteps][T::kColumns][4];

// Scores of COUNT sixteens of tokens, score(j): of this warp's dims, and then of all.
template <class T, int COUNT, class Score>
__device__ __forceinline__ void kv_bring_together(const Score& score) {
  static_assert(COUNT * 512 <= T::kHanded);
  const int warp = static_cast<int>(threadIdx.x >> 5), barrier = 1 + warp / 2;
  const uint32_t first = shared_address(dynamic_shared()) + T::kHandedAt + (threadIdx.x & 31) * 16;
  bar_sync(barrier, 64);  // the other has added what was there before
  hand_scores<COUNT>(first + static_cast<uint32_t>(warp * T::kStage), 512, score);
  bar_sync(barrier, 64);
  add_scores<COUNT>(first + static_cast<uint32_t>((warp ^ 1) * T::kStage), 512, score);
}

// Keys by channel. Scales multiply Q, one product a group, channel and query; zeros of keys are a product of their own.
// Codes: (lane, reg) of operand A number (kc, J) -> token 32 J + lane / 4 + 8 (reg % 2) of its sixteen, dim 16 kc + 8
// (reg / 2) + 2 (lane % 4) and the next. Scales and zeros of two dims lie side by side, so that what is loaded is
// operand A of the zeros' product: rows 8 to 15 are zeros, those before are not looked at.
template <class T>
__device__ __forceinline__ void kv_scores_channels(const KvDecodeArgs& a, const KvLane<T>& lane, const KvQuery<T>& q,
                                                   KvScores<T>& score) {
  constexpr int B = T::kKeyBits;
  const int t = static_cast<int>(threadIdx.x & 3), shared = kv_key_shared<T>(a);
  float zero[T::kColumns][4] = {};
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4], numbers[4], b[T::kColumns][2];
    uint2 query[T::kColumns];
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) query[n] = q(n, kc);
    const auto add_zeros = [&] {
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(zero[n], numbers, query[n].x, query[n].y);
    };
    ldmatrix_x4(word, lane.keys_at(0, kc));
    if constexpr (T::kGroups > 1) {  // a row a group
      ld_shared_v2(numbers[0], numbers[1], lane.key_zeros + 64 * kc),
          ld_shared_v2(numbers[2], numbers[3], lane.key_zeros + 64 * kc + 32);
      add_zeros();
    }
    each<0, T::kSteps>([&](auto step) {
      constexpr int J = decltype(step)::value;
      if constexpr (J % T::kGroupSteps == 0) {
        const uint32_t at =
            lane.key_scales + static_cast<uint32_t>((J / T::kGroupSteps >> shared) * T::kChannelLine + 64 * kc);
        ld_shared_v2(numbers[0], numbers[1], at), ld_shared_v2(numbers[2], numbers[3], at + 32);
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n)
          b[n][0] = mul_x2<false>(query[n].x, numbers[0]), b[n][1] = mul_x2<false>(query[n].y, numbers[2]);
        if constexpr (T::kGroups == 1) add_zeros();
      }
      const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]),
                                 codes_of<B, J>(word[3])};
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(score[J][n], codes, b[n][0], b[n][1]);
    });
  }
  each<0, T::kSteps>([&](auto step) {
    constexpr int J = decltype(step)::value;
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) {
      float z[2];
#pragma unroll
      for (int c = 0; c < 2; ++c)
        z[c] = (T::kGroups == 1 ? zero[n][2 + c]
                                : __shfl_sync(0xffffffffu, zero[n][2 + c], 4 * (J / T::kGroupSteps) + t)) *
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
  float part[T::kSteps][T::kColumns][4] = {}, sum[T::kColumns][4] = {};
  int group = 0;
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) {
    uint32_t word[4];
    uint2 query[T::kColumns];
    ldmatrix_x4(word, lane.keys_at(0, kc));
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
      query[n] = q(n, kc), mma_m16n8k16<false>(sum[n], ones, query[n].x, query[n].y);
    each<0, T::kSteps>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]),
                                 codes_of<B, J>(word[3])};
#pragma unroll
      for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(part[J][n], codes, query[n].x, query[n].y);
    });
    if (kc % 2 == 0 || (16 * kc + 16) % a.key_group != 0) continue;
    each<0, T::kSteps>([&](auto step) {
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
    for (int j = 0; j < T::kSteps; ++j) {
      uint32_t word[4];
      ldmatrix_x4(word, lane.keys_at(j, k));
      each<0, X>([&](auto step) {
        constexpr int x = decltype(step)::value;
        const uint32_t codes[4] = {codes_at(word[0], step), codes_at(word[1], step), codes_at(word[2], step),
                                   codes_at(word[3], step)};
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n) {
          const uint2 query = q(n, X * k + x);
          mma_m16n8k16<false>(B == 4 && x % 2 ? second[j][n] : score[j][n], codes, query.x, query.y);
        }
      });
    }
#pragma unroll
  for (int p = 0; p < T::kSteps; ++p) {
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
