// The exact tail of a sequence, for kv_decode.cuh.
#pragma once
#include "cuda/attention/kv_values.cuh"

namespace lpq::cuda {

// Sixteen tokens of the exact tail from `first` on, those beyond its end left out; outputs in their own units.
template <class T>
__device__ __forceinline__ void kv_tail(const KvDecodeArgs& a, int sequence, int head, int first, int tail,
                                        const KvQuery<T>& q, KvState<T>& state) {
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, tokens = tail - first,
            row = a.kv_heads * T::kDims;
  const long long base =
      (static_cast<long long>(sequence) * a.room + first) * row + static_cast<long long>(head) * T::kDims;
  const unsigned short *keys = a.tail_keys + base, *values = a.tail_values + base;
  uint32_t k[T::kDims / 16][4], v[T::kDims / 16][4];
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = g + 8 * (i & 1);
      k[kc][i] =
          token < tokens ? *reinterpret_cast<const uint32_t*>(keys + token * row + kv_query_dim<T>(kc, i >> 1)) : 0;
    }
  const auto fetch_values = [&] {
#pragma unroll
    for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (T::kInWords) {
          const int token = 2 * t + 8 * (i >> 1), d = kv_value_dim<T>(m, g + 8 * (i & 1));
          v[m][i] = (token < tokens ? values[token * row + d] : 0u) |
                    (token + 1 < tokens ? static_cast<uint32_t>(values[(token + 1) * row + d]) << 16 : 0u);
        } else {
          const int token = g + 8 * (i >> 1);
          v[m][i] = token < tokens
                        ? *reinterpret_cast<const uint32_t*>(values + token * row + 16 * m + 8 * (i & 1) + 2 * t)
                        : 0u;
        }
      }
  };
  if constexpr (T::kDims < 256) fetch_values();  // with the keys, as far as there are registers
  float score[4] = {};
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc) mma_m16n8k16<false>(score, k[kc], q[kc][0], q[kc][1]);
  float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    score[i] = g + 8 * (i >> 1) < tokens ? score[i] * a.scale : -INFINITY;
    peak[i & 1] = fmaxf(peak[i & 1], score[i]);
  }
  if constexpr (T::kDims == 256) fetch_values();
  kv_raise<T>(peak, state);
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] = ex2_approx(score[i] - state.most[i & 1]), state.total[i & 1] += score[i];
  const uint32_t weights[2] = {movmatrix_trans(cvt_x2<false>(score[0], score[1])),
                               movmatrix_trans(cvt_x2<false>(score[2], score[3]))};
#pragma unroll
  for (int m = 0; m < T::kDims / 16; ++m) {
    if constexpr (!T::kInWords)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[m][i] = movmatrix_trans(v[m][i]);
    mma_m16n8k16<false>(state.out[m], v[m], weights[0], weights[1]);
  }
}

}  // namespace lpq::cuda
