// The exact tail of a sequence, for kv_decode.cuh.
#pragma once
#include "cuda/attention/kv_values.cuh"

namespace lpq::cuda {

// Sixteen tokens of the exact tail from `first` on, those beyond its end left out; outputs in their own units.
template <class T>
__device__ __forceinline__ void kv_tail(const KvDecodeArgs& a, int sequence, int head, int first, int tail,
                                        const KvQuery<T>& q, KvState<T>& state) {
  const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, tokens = tail - first,
            first_dim = kv_first_dim<T>(), dims = a.head_dims - first_dim, row = a.kv_heads * a.head_dims;
  const long long base = (static_cast<long long>(sequence) * a.room + first) * row +
                         static_cast<long long>(head) * a.head_dims + first_dim;
  const unsigned short *keys = a.tail_keys + base, *values = a.tail_values + base;
  uint32_t k[T::kDims / 16][4], v[T::kDims / 16][4];
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = g + 8 * (i & 1), d = kv_query_dim<T>(kc, i >> 1);
      k[kc][i] = token < tokens && d < dims ? *reinterpret_cast<const uint32_t*>(keys + token * row + d) : 0;
    }
  const auto fetch_values = [&] {
#pragma unroll
    for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (T::kInWords) {
          const int token = 2 * t + 8 * (i >> 1), d = kv_value_dim<T>(m, g + 8 * (i & 1));
          v[m][i] = (token < tokens && d < dims ? values[token * row + d] : 0u) |
                    (token + 1 < tokens && d < dims ? static_cast<uint32_t>(values[(token + 1) * row + d]) << 16 : 0u);
        } else {
          const int token = g + 8 * (i >> 1), d = 16 * m + 8 * (i & 1) + 2 * t;
          v[m][i] = token < tokens && d < dims ? *reinterpret_cast<const uint32_t*>(values + token * row + d) : 0u;
        }
      }
  };
  if constexpr (T::kDims < 256) fetch_values();  // with the keys, as far as there are registers
  float score[T::kColumns][4] = {}, peak[T::kColumns][2];
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n) {
#pragma unroll
    for (int kc = 0; kc < T::kDims / 16; ++kc) {
      const uint2 query = q(n, kc);
      mma_m16n8k16<false>(score[n], k[kc], query.x, query.y);
    }
    if constexpr (T::kSharers > 1) kv_bring_together<T, 1>([&](int) -> float (&)[4] { return score[n]; });
    peak[n][0] = state.most[n][0], peak[n][1] = state.most[n][1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] = g + 8 * (i >> 1) < tokens ? score[n][i] * a.scale : -INFINITY;
      peak[n][i & 1] = fmaxf(peak[n][i & 1], score[n][i]);
    }
  }
  if constexpr (T::kDims == 256) fetch_values();
  kv_raise<T>(peak, state);
  uint32_t weights[T::kColumns][2];
  constexpr uint32_t one = 0x3c003c00u, ones[4] = {0, one, 0, one};
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] = ex2_approx(score[n][i] - state.most[n][i & 1]);
    weights[n][0] = movmatrix_trans(cvt_x2<false>(score[n][0], score[n][1])),
    weights[n][1] = movmatrix_trans(cvt_x2<false>(score[n][2], score[n][3]));
    mma_m16n8k16<false>(state.rest[n], ones, weights[n][0], weights[n][1]);
  }
#pragma unroll
  for (int m = 0; m < T::kDims / 16; ++m) {
    if constexpr (!T::kInWords)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[m][i] = movmatrix_trans(v[m][i]);
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n) mma_m16n8k16<false>(state.out[n][m], v[m], weights[n][0], weights[n][1]);
  }
}

}  // namespace lpq::cuda
