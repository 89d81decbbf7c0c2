// What a warp of cached.cuh does with a stage: scores, their softmax, outputs.
#pragma once
#include "cuda/attention/cached/producer.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

template <class T>
struct CachedState {
  float most[2] = {-INFINITY, -INFINITY},
        total[2] = {0, 0};  // of columns 2 (lane % 4) and the next; totals are parts until the end
  float out[T::kDims / 16][4] = {};
};

// What a column is: of the table behind the rings.
struct CachedColumn {
  int token;  // it sees tokens of its sequence up to this one
  int row;    // of q and y
};

// Eight numbers of q times scale, rounded to 16 bits.
template <bool BF>
__device__ __forceinline__ uint4 cached_queries(const CachedArgs& a, long long at) {
  uint32_t words[4];
  if (a.wide_q) {
    const float4* const from = reinterpret_cast<const float4*>(static_cast<const float*>(a.q) + at);
    const float4 low = from[0], high = from[1];
    words[0] = cvt_x2<BF>(low.x * a.scale, low.y * a.scale), words[1] = cvt_x2<BF>(low.z * a.scale, low.w * a.scale);
    words[2] = cvt_x2<BF>(high.x * a.scale, high.y * a.scale),
    words[3] = cvt_x2<BF>(high.z * a.scale, high.w * a.scale);
  } else {
    const uint4 eight = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(a.q) + at);
    const uint32_t from[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = cvt_x2<BF>(to_float<BF>(static_cast<unsigned short>(from[i])) * a.scale,
                            to_float<BF>(static_cast<unsigned short>(from[i] >> 16)) * a.scale);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Queries as B operands, and what the columns are as a table. Until then queries wait in the first warp's last stage,
// which is free: (column, chunk of 8 dims) -> byte column * 2 DIMS + ((chunk ^ column) << 4).
template <class T, bool BF>
__device__ __forceinline__ void cached_columns(const CachedArgs& a, const CachedOwn& own, uint32_t base,
                                               CachedColumn* table, uint32_t (&q)[T::kDims / 16][2]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  const uint32_t queries = base + static_cast<uint32_t>((T::kStages - 1) * T::kStage);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < D; i += 32 * T::kWarps) {
    const int column = i / (D / 8), of = i % (D / 8) * 8, turn = own.turn_of(column, a.group),
              first = own.tile * kCachedQueries + column - turn * a.group;
    const int row = (own.start + turn) * a.heads + own.head * a.group + first;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (column < own.columns && of < a.head_dim)
      eight = cached_queries<BF>(a, static_cast<long long>(row) * a.head_dim + of);
    st_shared_v4(queries + static_cast<uint32_t>(column * D * 2 + (((of >> 3) ^ column) << 4)), eight);
    // A column that is none sees nothing.
    if (of == 0) table[column].token = column < own.columns ? own.past() + turn : -1, table[column].row = row;
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < D / 16; step += 2) {
    uint32_t four[4];
    ldmatrix_x4(four, (queries + static_cast<uint32_t>((lane & 7) * D * 2 + ((matrix ^ (lane & 7)) << 4))) ^
                          static_cast<uint32_t>(step << 5));
    q[step][0] = four[0], q[step][1] = four[1], q[step + 1][0] = four[2], q[step + 1][1] = four[3];
  }
}

// S = K Qᵀ of a stage; of columns that see up to own[0] and own[1], -infinity for what they do not see.
template <class T, bool BF>
__device__ __forceinline__ void cached_scores(const CachedArgs& a, uint32_t stage, int unit,
                                              const uint32_t (&q)[T::kDims / 16][2], const int (&own)[2],
                                              float (&score)[4]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  const uint32_t key_rows =
      stage + static_cast<uint32_t>(((lane & 7) + 8 * (matrix & 1)) * D * 2 + (((matrix >> 1) ^ (lane & 7)) << 4));
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t k[4];
    ldmatrix_x4(k, key_rows ^ static_cast<uint32_t>(step << 5));
    mma_m16n8k16<BF>(score, k, q[step][0], q[step][1]);
  }
  if (a.cap > 0)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = a.cap * tanhf(score[i] / a.cap);
  const int token = unit * kCachedTokens + (lane >> 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = token + 8 * (i >> 1), last = own[i & 1];
    if (from > last || (a.window > 0 && from <= last - a.window)) score[i] = -INFINITY;
  }
}

// Takes a stage's scores into maxima and totals, rescales what is there, and leaves their shares; `first`: nothing is
// there yet.
template <class T>
__device__ __forceinline__ void cached_softmax(CachedState<T>& state, float (&score)[4], bool first) {
  float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int i = 0; i < 4; ++i) peak[i & 1] = fmaxf(peak[i & 1], score[i]);
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
  if (first) {
    state.most[0] = peak[0], state.most[1] = peak[1];  // sums are still 0
  } else if (__any_sync(0xffffffffu, peak[0] > state.most[0] || peak[1] > state.most[1])) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float shrink = peak[c] == state.most[c] ? 1.0f : ex2_approx(state.most[c] - peak[c]);
      state.most[c] = peak[c], state.total[c] *= shrink;
#pragma unroll
      for (int m = 0; m < T::kDims / 16; ++m) state.out[m][c] *= shrink, state.out[m][c + 2] *= shrink;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Columns that have seen nothing yet have a maximum of -infinity, and no weight.
    score[i] = score[i] == -INFINITY ? 0.0f : ex2_approx(score[i] - state.most[i & 1]);
    state.total[i & 1] += score[i];
  }
}

// O += Vᵀ P of a stage.
template <class T, bool BF>
__device__ __forceinline__ void cached_outputs(CachedState<T>& state, uint32_t stage, const float (&share)[4]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  uint32_t weights[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) weights[k] = movmatrix_trans(cvt_x2<BF>(share[2 * k], share[2 * k + 1]));
  const uint32_t value_rows = stage + static_cast<uint32_t>(T::kSide + ((lane & 7) + 8 * (matrix >> 1)) * D * 2 +
                                                            (((matrix & 1) ^ (lane & 7)) << 4));
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, value_rows ^ static_cast<uint32_t>(step << 5));
    mma_m16n8k16<BF>(state.out[step], v, weights[0], weights[1]);
  }
}

}  // namespace lpq::cuda
