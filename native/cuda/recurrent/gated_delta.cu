// The gated delta rule (ops/recurrent.h, GatedDelta), token by token. With S' = diag(exp g) S,
//   d = beta (v - kᵀS'),  y = qᵀS' + (q k) d,  S = S' + k d
// so that both products with S' are summed at once.
#include "cuda/recurrent/columns.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace

// What a token's states are multiplied with: q and k of length 1 (q also divided by sqrt(keyDim)), their product, the
// decays and the strength. A block a token; a warp takes every so many heads.
extern "C" __global__ void __launch_bounds__(256)
    lpq_delta_factors(const float* q, const float* k, const float* decay, const float* beta, const void* rate,
                      int rate_type, const void* bias, int bias_type, float strength, int heads, int key_heads,
                      int key_dim, int gates, float* unit_q, float* unit_k, float* product, float* factor,
                      float* weight) {
  const index_t t = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const float scale = 1.0f / sqrtf(static_cast<float>(key_dim));
  for (int h = warp; h < key_heads; h += warps) {
    const index_t first = (t * key_heads + h) * key_dim;
    float of_q = 0, of_k = 0, both = 0;
    for (int i = lane; i < key_dim; i += 32) {
      const float a = q[first + i], b = k[first + i];
      of_q = __fmaf_rn(a, a, of_q), of_k = __fmaf_rn(b, b, of_k), both = __fmaf_rn(a, b, both);
    }
    of_q = warp_sum(of_q), of_k = warp_sum(of_k), both = warp_sum(both);
    const float by_q = scale / sqrtf(of_q + 1e-6f), by_k = 1.0f / sqrtf(of_k + 1e-6f);
    for (int i = lane; i < key_dim; i += 32) {
      unit_q[first + i] = q[first + i] * by_q;
      unit_k[first + i] = k[first + i] * by_k;
    }
    if (lane == 0) product[t * key_heads + h] = both * by_q * by_k;
  }
  const int per = gates / heads;
  for (int i = threadIdx.x; i < gates; i += blockDim.x) {
    const float at = decay[t * gates + i] + load_any(bias, bias_type, i);
    factor[t * gates + i] = expf(-expf(load_any(rate, rate_type, i / per)) * softplus(at));
  }
  for (int h = threadIdx.x; h < heads; h += blockDim.x)
    weight[t * heads + h] = strength / (1.0f + expf(-beta[t * heads + h]));
}

namespace {

struct Delta {
  const float *q, *k, *product, *factor, *weight, *v;
  float* y;
  int heads, key_heads, key_dim, value_dim;
};

// R: rows of a thread. CHANNELS: a decay a row. grid: (heads * blocks of kColumns columns, sequences).
template <int R, bool CHANNELS>
__device__ void delta(const Delta& a, const Past& past) {
  constexpr int kRows = 8 * R, kTokens = kTokensAtOnce<R>;
  __shared__ __align__(16) float keys[2][kTokens][kRows], queries[2][kTokens][kRows], values[2][kTokens][kColumns];
  __shared__ __align__(16) float decays[2][kTokens][CHANNELS ? kRows : 1], scalars[2][kTokens][2];
  const int parts = (a.value_dim + kColumns - 1) / kColumns, head = blockIdx.x / parts,
            first = blockIdx.x % parts * kColumns, there = min(kColumns, a.value_dim - first);
  const int key_head = head / (a.heads / a.key_heads);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const Column at;
  float* const kept =
      run.slot < 0 ? nullptr
                   : past.state + (static_cast<index_t>(run.slot) * a.heads + head) * a.key_dim * a.value_dim + first;
  StatePart<R> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.key_dim, a.value_dim, there, at);

  const auto fetch = [&](int buffer, int begin) {
    for (int i = 0; i < kTokens && begin + i < run.count; ++i) {
      const index_t t = run.first + begin + i, key = (t * a.key_heads + key_head) * a.key_dim;
      fetch_floats(keys[buffer][i], a.k + key, kRows, a.key_dim, false);
      fetch_floats(queries[buffer][i], a.q + key, kRows, a.key_dim, false);
      fetch_floats(values[buffer][i], a.v + (t * a.heads + head) * a.value_dim + first, kColumns, there, false);
      if (CHANNELS)
        fetch_floats(decays[buffer][i], a.factor + (t * a.heads + head) * a.key_dim, kRows, a.key_dim, false);
      else if (threadIdx.x == 2) cp_async_4(shared_address(decays[buffer][i]), a.factor + t * a.heads + head, 4);
      if (threadIdx.x == 0) cp_async_4(shared_address(scalars[buffer][i]), a.weight + t * a.heads + head, 4);
      if (threadIdx.x == 1)
        cp_async_4(shared_address(scalars[buffer][i] + 1), a.product + t * a.key_heads + key_head, 4);
    }
    cp_async_commit();
  };
  fetch(0, 0);
  for (int begin = 0, buffer = 0; begin < run.count; begin += kTokens, buffer ^= 1) {
    if (begin + kTokens < run.count) {
      fetch(buffer ^ 1, begin + kTokens);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    for (int i = 0; i < kTokens && begin + i < run.count; ++i) {
      const float *k = keys[buffer][i] + at.row, *q = queries[buffer][i] + at.row, *g = decays[buffer][i];
      float of_k[2] = {}, of_q[2] = {};
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float factor = CHANNELS ? g[8 * j + at.row] : g[0], kj = k[8 * j], qj = q[8 * j];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          state.s[j][c] *= factor;
          of_k[c] = __fmaf_rn(kj, state.s[j][c], of_k[c]);
          of_q[c] = __fmaf_rn(qj, state.s[j][c], of_q[c]);
        }
      }
      float d[2], y[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        d[c] = scalars[buffer][i][0] * (values[buffer][i][at.first + c] - over_rows(of_k[c]));
        y[c] = __fmaf_rn(scalars[buffer][i][1], d[c], over_rows(of_q[c]));
      }
#pragma unroll
      for (int j = 0; j < R; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) state.s[j][c] = __fmaf_rn(k[8 * j], d[c], state.s[j][c]);
      if (at.row < 2 && at.first + at.row < there)
        a.y[(static_cast<index_t>(run.first + begin + i) * a.heads + head) * a.value_dim + first + at.first + at.row] =
            at.row == 0 ? y[0] : y[1];
    }
    __syncthreads();
  }
  if (kept) state.store(kept, a.key_dim, a.value_dim, there, at);
}

}  // namespace

#define LPQ_GATED_DELTA(r)                                                                                        \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_gated_delta_##r(Delta a, Past past) {          \
    delta<r, false>(a, past);                                                                                     \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_gated_delta_channels_##r(Delta a, Past past) { \
    delta<r, true>(a, past);                                                                                      \
  }
LPQ_GATED_DELTA(4)
LPQ_GATED_DELTA(8)
LPQ_GATED_DELTA(16)
LPQ_GATED_DELTA(32)
