// One query of one head over a list of rows, by a warp, in fp32 with an online softmax (arXiv:2205.14135, algorithm 1):
//   lane -> the score of one of 32 rows, then dims lane, lane + 32, ... of the sum of values
#pragma once
#include "cuda/types.cuh"

namespace lpq::cuda {

template <int DIMS>  // of values: 32 DIMS at most
struct Listed {
  float out[DIMS], most, sum;

  // sink: minus infinity, or a logit without a value.
  __device__ explicit Listed(float sink) : out{}, most(sink), sum(sink == -INFINITY ? 0.0f : 1.0f) {}

  // row(n): of entry n of the list, or -1; key(row), value(row): where they lie.
  template <class Row, class Key, class Value>
  __device__ void attend(const float* query, int head_dim, int value_dim, float scale, int count, Row row, Key key,
                         Value value) {
    const int lane = threadIdx.x;
    for (int base = 0; base < count; base += 32) {
      const int own = base + lane < count ? row(base + lane) : -1;
      float score = -INFINITY;
      if (own >= 0) {
        const auto* k = key(own);
        float dot = 0;
#pragma unroll 4
        for (int c = 0; c < head_dim; ++c) dot = __fmaf_rn(query[c], widen(k[c]), dot);
        score = dot * scale;
      }
      const float peak = fmaxf(most, warp_max(score));
      if (peak == -INFINITY) continue;
      const float shrink = expf(most - peak), share = own >= 0 ? expf(score - peak) : 0.0f;
      sum = sum * shrink + warp_sum(share);
      most = peak;
#pragma unroll
      for (int i = 0; i < DIMS; ++i) out[i] *= shrink;
      for (int j = 0; j < 32 && base + j < count; ++j) {
        const int at = __shfl_sync(0xffffffffu, own, j);
        const float p = __shfl_sync(0xffffffffu, share, j);
        if (at < 0) continue;
        const auto* v = value(at);
#pragma unroll
        for (int i = 0; i < DIMS; ++i)
          if (lane + 32 * i < value_dim) out[i] = __fmaf_rn(p, widen(v[lane + 32 * i]), out[i]);
      }
    }
  }
  __device__ void store(float* y, int value_dim) const {
    const float factor = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < DIMS; ++i)
      if (static_cast<int>(threadIdx.x) + 32 * i < value_dim) y[threadIdx.x + 32 * i] = out[i] * factor;
  }
};

}  // namespace lpq::cuda
