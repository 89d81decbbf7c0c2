// The softmax of a unit's scores within a warp, and O += Vᵀ P: dims are rows, queries the columns.
#pragma once
#include "cuda/attention/kv_scores.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// What a warp has found: for its columns 2 (lane % 4) and the next of each tile. (lane, reg) of out[n][m] -> row lane /
// 4 + 8 (reg / 2) of operand A number m (kv_value_dim), column 2 (lane % 4) + reg % 2; of rest[n] -> reg / 2 = 0: the
// weighted sum of zeros of group lane / 4 of values, 1: the sum of weights.
template <class T>
struct KvState {
  float most[T::kColumns][2], rest[T::kColumns][4] = {};
  float out[T::kColumns][T::kDims / 16][4] = {};
  __device__ KvState() {
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) most[n][0] = most[n][1] = -INFINITY;
  }
};

// Raises the maxima to what this warp has seen, and takes down what was summed below the old ones.
template <class T>
__device__ __forceinline__ void kv_raise(float (&peak)[T::kColumns][2], KvState<T>& state) {
  bool higher = false;
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n)
    higher = higher || peak[n][0] > state.most[n][0] || peak[n][1] > state.most[n][1];
  if (!__any_sync(0xffffffffu, higher)) return;
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& top = peak[n][c];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      const float shrink = top == state.most[n][c] ? 1.0f : ex2_approx(state.most[n][c] - top);
      state.most[n][c] = top, state.rest[n][c] *= shrink, state.rest[n][c + 2] *= shrink;
#pragma unroll
      for (int m = 0; m < T::kDims / 16; ++m) state.out[n][m][c] *= shrink, state.out[n][m][c + 2] *= shrink;
    }
}

// Scores, in units of log2, become weights; `here` of the unit's tokens are there.
template <class T>
__device__ __forceinline__ void kv_weigh(int here, KvScores<T>& score, KvState<T>& state) {
  const int g = static_cast<int>(threadIdx.x & 31) >> 2;
  float peak[T::kColumns][2];
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n) {
    peak[n][0] = state.most[n][0], peak[n][1] = state.most[n][1];
#pragma unroll
    for (int p = 0; p < T::kSteps; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (T::kInWords && 16 * p + 2 * g + (i >> 1) >= here) score[p][n][i] = -INFINITY;
        peak[n][i & 1] = fmaxf(peak[n][i & 1], score[p][n][i]);
      }
  }
  kv_raise<T>(peak, state);
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n) {
#pragma unroll
    for (int p = 0; p < T::kSteps; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) score[p][n][i] = ex2_approx(score[p][n][i] - state.most[n][i & 1]);
  }
}

// Weights become halves once; the scales of a group of values multiply those. A product with zeros, a row a group, and
// ones keeps their sums. Codes: (lane, reg) of operand A number (j, m) -> row lane / 4 + 8 (reg % 2), row of tokens
// 16 j + 2 (lane % 4) + 8 (reg / 2) and the next.
template <class T>
__device__ __forceinline__ void kv_add_values(const KvDecodeArgs& a, const KvLane<T>& lane, int here,
                                              const KvScores<T>& score, KvState<T>& state) {
  constexpr int R = T::kCodes, B = T::kBits, V = T::kValueGroups;
  constexpr uint32_t one = 0x3c003c00u;
  const int shared = kv_value_shared<T>(a);
#pragma unroll
  for (int j = 0; j < T::kSteps; ++j) {
    uint32_t plain[T::kColumns][2], weights[V][T::kColumns][2];
    const uint32_t zeros[4] = {kv_pair<T, 1>(lane.value_zeros, j, 0, here), one,
                               kv_pair<T, 1>(lane.value_zeros, j, 1, here), one};
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k)
        plain[n][k] = movmatrix_trans(cvt_x2<false>(score[j][n][2 * k], score[j][n][2 * k + 1]));
      mma_m16n8k16<false>(state.rest[n], zeros, plain[n][0], plain[n][1]);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const uint32_t at = lane.value_scales + static_cast<uint32_t>((v >> shared) * 2 * T::kTokenLine);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t scales = kv_pair<T, 0>(at, j, k, here);
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n) weights[v][n][k] = mul_x2<false>(plain[n][k], scales);
      }
    }
#pragma unroll
    for (int w = 0; w < (T::kWords + 15) / 16; ++w) {
      uint32_t word[4];
      ldmatrix_x4_trans(word, lane.values_at(16 * j, w));
      const auto add = [&](int m, int v, const uint32_t (&codes)[4]) {
#pragma unroll
        for (int n = 0; n < T::kColumns; ++n)
          mma_m16n8k16<false>(state.out[n][m], codes, weights[v][n][0], weights[v][n][1]);
      };
      if constexpr (T::kNarrow) {
        // Rows 8 to 15 of operand A are the next code of the same words.
        each<0, R / 2>([&](auto step) {
          constexpr int I = decltype(step)::value;
          add(I, 16 * I / T::kPart,
              {codes_of<B, 2 * I>(word[0]), codes_of<B, 2 * I + 1>(word[0]), codes_of<B, 2 * I>(word[2]),
               codes_of<B, 2 * I + 1>(word[2])});
        });
      } else {
        each<0, R>([&](auto step) {
          constexpr int J = decltype(step)::value;
          const int m = T::kInWords
                            ? w * R + J
                            : (16 * w / T::kChunkWords * T::kChunk + 16 * w % T::kChunkWords + J * T::kChunkWords) / 16;
          add(m, T::kInWords ? 0 : 16 * m / T::kPart,
              {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]), codes_of<B, J>(word[3])});
        });
      }
    }
  }
}

// Multiplies sums by the powers of two that codes were made smaller by, or takes that back.
template <class T, bool BACK>
__device__ __forceinline__ void kv_settle(KvState<T>& state) {
  each<0, T::kDims / 16>([&](auto step) {
    constexpr int M = decltype(step)::value;
    using F = ValueField<T, M>;
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        state.out[n][M][i] *= i < 2 ? (BACK ? F::kBackLow : 1 / F::kBackLow) : (BACK ? F::kBackHigh : 1 / F::kBackHigh);
  });
}

}  // namespace lpq::cuda
