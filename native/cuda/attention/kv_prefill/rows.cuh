// What lanes of kv_prefill.cuh know of their rows: (lane, c) -> row lane / 4 + 8 c of the warp's sixteen; sums, (lane,
// [n][i]) -> row lane / 4 + 8 (i / 2), column 8 n + 2 (lane % 4) + i % 2: of S tokens of the tile, of O dims.
#pragma once
#include "cuda/attention/found.cuh"
#include "cuda/attention/kv_prefill/walk.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/x2.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

// Totals are parts of rows until the end.
template <int DIMS>
struct PrefillState {
  float out[DIMS / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// Scores are largest where products are: a scale below 0 turns the queries' signs, one of 0 makes them 0.
struct PrefillScale {
  float scale;
  uint32_t sign, keep;
  __device__ __forceinline__ PrefillScale(float given) {
    scale = given == 0 ? 1.0f : fabsf(given), sign = given < 0 ? 0x80008000u : 0, keep = given == 0 ? 0 : 0xffffffffu;
  }
  __device__ __forceinline__ uint4 queries(uint4 x) const {
    return make_uint4((x.x ^ sign) & keep, (x.y ^ sign) & keep, (x.z ^ sign) & keep, (x.w ^ sign) & keep);
  }
};

// Dims 8 chunk .. of a row of queries, as halves; 0 beyond the last row and the head's dims.
template <class T, int ROWS>
__device__ __forceinline__ uint4 prefill_query(const KvDecodeArgs& a, const PrefillOwn<T, ROWS>& own, int row,
                                               int chunk) {
  if (row >= own.rows || 8 * chunk >= a.head_dims) return make_uint4(0, 0, 0, 0);
  const uint4 x = *reinterpret_cast<const uint4*>(a.q + own.at(a, row) + 8 * chunk);
  if (!a.bf16_queries) return x;
  const auto half = [](uint32_t w) {
    return cvt_x2<false>(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
  };
  return make_uint4(half(x.x), half(x.y), half(x.z), half(x.w));
}

// What a row's sums are multiplied by in the end: its sink, if there is one, takes part in the softmax.
__device__ __forceinline__ float prefill_inverse(const KvDecodeArgs& a, int head, float most, float total) {
  if (a.sinks) {
    const float sink = load_any(a.sinks, a.sinks_type, head) * 1.44269504f, peak = fmaxf(most, sink),
                shrink = ex2_approx(most - peak);
    return __fdiv_rn(shrink, __fmaf_rn(total, shrink, ex2_approx(sink - peak)));
  }
  return total > 0 ? __fdiv_rn(1.0f, total) : 0;
}

// Leaves out what rows do not see: `limits`, one past the newest token that each of the lane's rows sees.
template <class T, int N>
__device__ __forceinline__ void prefill_mask(const PrefillWalk<T>& walk, int tile, const int (&sees)[2],
                                             float (&score)[N][4]) {
  const bool packed = tile < walk.packed;
  const int first = walk.first(tile), t = static_cast<int>(threadIdx.x & 3);
  int limit[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) limit[c] = (packed && walk.length < sees[c] ? walk.length : sees[c]) - first;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = 8 * n + 2 * t + (i & 1), token = packed ? prefill_token<T>(own) : own;
      if (token >= limit[i >> 1]) score[n][i] = -INFINITY;
    }
}
// Whether a tile has a token that a row that sees up to `sees` does not see.
template <class T>
__device__ __forceinline__ bool prefill_masks(const PrefillWalk<T>& walk, int tile, int sees) {
  const bool packed = tile < walk.packed;
  const int past = walk.first(tile) + (packed ? prefill_token<T>(T::kTokens - 1) + 1 : T::kTokens);
  return past > sees || (packed && past > walk.length);
}

// Takes a tile's scores into maxima and totals: they become weights. By what outputs so far have to be taken down, if
// the result is true.
template <int N>
__device__ __forceinline__ bool prefill_softmax(float scale, float (&score)[N][4], float (&most)[2], float (&total)[2],
                                                float (&shrink)[2]) {
  float peak[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float own = score[0][2 * c];
#pragma unroll
    for (int n = 0; n < N; ++n) own = fmaxf(own, fmaxf(score[n][2 * c], score[n][2 * c + 1]));
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, mask));
    peak[c] = own * scale;
  }
  const bool raised = __any_sync(0xffffffffu, peak[0] > most[0] || peak[1] > most[1]);
  float less[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float now = fmaxf(most[c], peak[c]);
    less[c] = now == -INFINITY ? 0 : -now;  // a row that has seen no token yet: weights of 0
    shrink[c] = most[c] == -INFINITY ? 0 : ex2_approx(most[c] + less[c]);
    most[c] = now, total[c] *= shrink[c];
  }
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] = ex2_approx(__fmaf_rn(score[n][i], scale, less[i >> 1]));
      total[i >> 1] += score[n][i];
    }
  return raised;
}
template <int DIMS>
__device__ __forceinline__ void prefill_shrink(const float (&shrink)[2], float (&out)[DIMS / 8][4]) {
#pragma unroll
  for (int m = 0; m < DIMS / 8; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[m][i] *= shrink[i >> 1];
}
// Weights of sixteen tokens as operand A of the second product.
template <int N>
__device__ __forceinline__ void prefill_weights(const float (&score)[N][4], int k, uint32_t (&p)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    p[i] = cvt_x2<false>(score[2 * k + (i >> 1)][2 * (i & 1)], score[2 * k + (i >> 1)][2 * (i & 1) + 1]);
}

// Dims 2 j and the next, or four, of y.
__device__ __forceinline__ void prefill_write(const KvDecodeArgs& a, long long at, float low, float high) {
  if (a.store == kKvStoreF32) *reinterpret_cast<float2*>(static_cast<float*>(a.y) + at) = make_float2(low, high);
  else
    *reinterpret_cast<uint32_t*>(static_cast<unsigned short*>(a.y) + at) =
        a.store == kKvStoreBf16 ? cvt_x2<true>(low, high) : cvt_x2<false>(low, high);
}

// Writes y, or where there are several splits what this one found; the rows' sixteen of the block's begin at `own_row`,
// the dims at `first_dim`.
template <class T, int ROWS>
__device__ __forceinline__ void prefill_store(const KvDecodeArgs& a, const PrefillOwn<T, ROWS>& own, int own_row,
                                              int first_dim, PrefillState<T::kOwnDims>& state) {
  constexpr int D = T::kDims, kOwn = T::kOwnDims;
  const int lane = static_cast<int>(threadIdx.x & 31), t = lane & 3;
  float* const record = a.partial + (static_cast<long long>(own.tile) * a.splits + own.split) * kPrefillRecord<ROWS, D>;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float total = state.total[c];
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) total += __shfl_xor_sync(0xffffffffu, total, mask);
    const int row = own_row + (lane >> 2) + 8 * c;
    if (own.first_row + row >= own.rows) continue;
    if (a.splits > 1) {
      if (t == 0 && first_dim == 0) record[row] = state.most[c], record[ROWS + row] = total;
      float* const to = record + 2 * ROWS + row * D + first_dim + 2 * t;
#pragma unroll
      for (int m = 0; m < kOwn / 8; ++m)
        *reinterpret_cast<float2*>(to + 8 * m) = make_float2(state.out[m][2 * c], state.out[m][2 * c + 1]);
      continue;
    }
    const long long at = own.at(a, own.first_row + row) + first_dim + 2 * t;
    const float inverse = prefill_inverse(a, own.head_of(own.first_row + row), state.most[c], total);
#pragma unroll
    for (int m = 0; m < kOwn / 8; ++m)
      if (first_dim + 8 * m < a.head_dims)
        prefill_write(a, at + 8 * m, state.out[m][2 * c] * inverse, state.out[m][2 * c + 1] * inverse);
  }
}

// The block that ends last brings the splits together, in their order. `sync`: of the THREADS that take part, of which
// this is number `thread`.
template <class T, int ROWS, int THREADS, class Sync>
__device__ __forceinline__ void prefill_join(const KvDecodeArgs& a, const PrefillOwn<T, ROWS>& own, int thread,
                                             unsigned* flag, const Sync& sync) {
  constexpr int D = T::kDims, kSize = kPrefillRecord<ROWS, D>;
  if (!is_last_sharer(a.counters + own.tile, flag, {0, a.splits - 1, 0}, thread == 0, sync)) return;
  const float* const all = a.partial + static_cast<long long>(own.tile) * a.splits * kSize;
  const int rows = own.rows - own.first_row < ROWS ? own.rows - own.first_row : ROWS;
#pragma unroll 1
  for (int i = 4 * thread; i < rows * D; i += 4 * THREADS) {
    if (i % D >= a.head_dims) continue;
    const Found found = join_splits<kSize, ROWS>(all, a.splits, i / D, i);
    const int row = own.first_row + i / D;
    const float inverse = prefill_inverse(a, own.head_of(row), found.most, found.total);
    const long long at = own.at(a, row) + i % D;
    prefill_write(a, at, found.sum[0] * inverse, found.sum[1] * inverse);
    prefill_write(a, at + 2, found.sum[2] * inverse, found.sum[3] * inverse);
  }
}

}  // namespace lpq::cuda
