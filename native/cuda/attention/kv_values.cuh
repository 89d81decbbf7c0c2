// The softmax of a unit's scores within a warp, and O += Vᵀ P: dims are rows, queries the 8 columns.
#pragma once
#include "cuda/attention/kv_scores.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// What a warp has found: for its columns 2 (lane % 4) and the next. Sums are parts of columns until the end. (lane,
// reg) of out[m] -> row lane / 4 + 8 (reg / 2) of operand A number m (kv_value_dim), column 2 (lane % 4) + reg % 2.
template <class T>
struct KvState {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, zeros[T::kValueGroups][2] = {};
  float out[T::kDims / 16][4] = {};
};

// Raises the maxima to what this warp has seen, and takes down what was summed below the old ones.
template <class T>
__device__ __forceinline__ void kv_raise(float (&peak)[2], KvState<T>& state) {
  if (!__any_sync(0xffffffffu, peak[0] > state.most[0] || peak[1] > state.most[1])) return;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
    const float shrink = ex2_approx(state.most[c] - peak[c]);
    state.most[c] = peak[c], state.total[c] *= shrink;
#pragma unroll
    for (int v = 0; v < T::kValueGroups; ++v) state.zeros[v][c] *= shrink;
#pragma unroll
    for (int m = 0; m < T::kDims / 16; ++m) state.out[m][c] *= shrink, state.out[m][c + 2] *= shrink;
  }
}

// Scores, in units of log2, become weights; `here` of the unit's tokens are there.
template <class T>
__device__ __forceinline__ void kv_weigh(int here, KvScores<T>& score, KvState<T>& state) {
  const int g = static_cast<int>(threadIdx.x & 31) >> 2;
  float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int j = 0; j < T::kSteps; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (T::kInWords && 16 * j + 2 * g + (i >> 1) >= here) score[j][i] = -INFINITY;
      peak[i & 1] = fmaxf(peak[i & 1], score[j][i]);
    }
  kv_raise<T>(peak, state);
#pragma unroll
  for (int j = 0; j < T::kSteps; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      score[j][i] = ex2_approx(score[j][i] - state.most[i & 1]), state.total[i & 1] += score[j][i];
}

// Scales of values multiply weights, zeros are a sum over them. Codes: (lane, reg) of operand A -> tokens 2 (lane % 4)
// and the next, of even or (reg / 2) odd ones of a step, row lane / 4 + 8 (reg % 2).
template <class T>
__device__ __forceinline__ void kv_add_values(const KvDecodeArgs& a, const KvUnit<T>& unit, int here,
                                              const KvScores<T>& score, KvState<T>& state) {
  constexpr int R = T::kCodes, B = T::kBits, V = T::kValueGroups;
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, matrix = lane >> 3;
  const int shared = T::kForm == KvForm::kFine || T::kForm == KvForm::kTokens
                         ? a.value_group >> 6
                         : 0;  // log2 of how many of V share a group
#pragma unroll
  for (int j = 0; j < T::kSteps; ++j) {
    uint32_t weights[V][2];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (v > 0 && v & ((1 << shared) - 1)) {
        weights[v][0] = weights[v - 1][0], weights[v][1] = weights[v - 1][1];
        continue;
      }
      KvNumbers n = kv_numbers<T>(unit.value_numbers(), v >> shared, j);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        // What lies behind the last token may be no number.
        if (T::kInWords && 16 * j + 2 * g + k >= here) n.scale[k] = n.zero[k] = 0;
        state.zeros[v][0] = __fmaf_rn(score[j][2 * k], n.zero[k], state.zeros[v][0]);
        state.zeros[v][1] = __fmaf_rn(score[j][2 * k + 1], n.zero[k], state.zeros[v][1]);
        weights[v][k] = movmatrix_trans(cvt_x2<false>(score[j][2 * k] * n.scale[k], score[j][2 * k + 1] * n.scale[k]));
      }
    }
#pragma unroll
    for (int w = 0; w < (T::kWords + 15) / 16; ++w) {
      uint32_t word[4];
      ldmatrix_x4_trans(
          word, unit.value_chunk(16 * j + (lane & 7) + 8 * (matrix >> 1), 2 * w + (T::kNarrow ? 0 : matrix & 1)));
      if constexpr (T::kNarrow) {
        // Rows 8 to 15 of operand A are the next code of the same words.
        each<0, R / 2>([&](auto step) {
          constexpr int I = decltype(step)::value;
          const uint32_t codes[4] = {codes_of<B, 2 * I>(word[0]), codes_of<B, 2 * I + 1>(word[0]),
                                     codes_of<B, 2 * I>(word[2]), codes_of<B, 2 * I + 1>(word[2])};
          constexpr int v = 16 * I / T::kPart;
          mma_m16n8k16<false>(state.out[I], codes, weights[v][0], weights[v][1]);
        });
      } else {
        each<0, R>([&](auto step) {
          constexpr int J = decltype(step)::value;
          const uint32_t codes[4] = {codes_of<B, J>(word[0]), codes_of<B, J>(word[1]), codes_of<B, J>(word[2]),
                                     codes_of<B, J>(word[3])};
          const int m = T::kInWords
                            ? w * R + J
                            : (16 * w / T::kChunkWords * T::kChunk + 16 * w % T::kChunkWords + J * T::kChunkWords) / 16;
          const int v = T::kInWords ? 0 : 16 * m / T::kPart;
          mma_m16n8k16<false>(state.out[m], codes, weights[v][0], weights[v][1]);
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
    for (int i = 0; i < 4; ++i)
      state.out[M][i] *= i < 2 ? (BACK ? F::kBackLow : 1 / F::kBackLow) : (BACK ? F::kBackHigh : 1 / F::kBackHigh);
  });
}

}  // namespace lpq::cuda
