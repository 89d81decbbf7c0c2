// The gated delta rule (ops/recurrent.h, GatedDelta), token by token. With S' = diag(exp g) S,
//   d = beta (v - kᵀS'),  y = qᵀS' + (q k) d,  S = S' + k d
// so that both products with S' are summed at once.
#include "cuda/recurrent/columns.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// What factors are made of: inputs of the operation as they come.
struct Given {
  const float *q, *k, *decay, *beta;
  const void *rate, *bias;
  int rate_type, bias_type;
  float strength;
};

// A lane's entries 32 j + lane of the q and k of a head, zeros behind `dims`.
template <int N>
struct Pair {
  float q[N], k[N];
  __device__ Pair(const float* query, const float* key, int dims) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const bool in = 32 * j + lane < dims;
      q[j] = in ? query[32 * j + lane] : 0.0f, k[j] = in ? key[32 * j + lane] : 0.0f;
    }
  }
};

// What the q and k of a head are multiplied with, to be of length 1 (q also divided by sqrt(keyDim)), and the product
// of both; the same in every lane of a warp.
struct Units {
  float q, k, product;
  template <int N>
  __device__ Units(const Pair<N>& of, int dims) {
    float of_q = 0, of_k = 0, both = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      of_q = __fmaf_rn(of.q[j], of.q[j], of_q), of_k = __fmaf_rn(of.k[j], of.k[j], of_k);
      both = __fmaf_rn(of.q[j], of.k[j], both);
    }
    of_q = warp_sum(of_q), of_k = warp_sum(of_k), both = warp_sum(both);
    q = 1.0f / sqrtf(static_cast<float>(dims)) / sqrtf(of_q + 1e-6f), k = 1.0f / sqrtf(of_k + 1e-6f);
    product = both * q * k;
  }
};

// Gate i of `gates`, of which `per` are a head's.
struct Gate {
  float at, bias, rate;
  __device__ Gate(const Given& a, index_t t, int gates, int per, int i)
      : at(a.decay[t * gates + i]),
        bias(load_any(a.bias, a.bias_type, i)),
        rate(load_any(a.rate, a.rate_type, i / per)) {}
  __device__ float decay() const { return expf(-expf(rate) * softplus(at + bias)); }
};

__device__ __forceinline__ float strength_of(float most, float beta) { return most / (1.0f + expf(-beta)); }

}  // namespace

// What a token's states are multiplied with: q and k of length 1, their product, the decays and the strength. A block a
// token; a warp takes every so many heads.
extern "C" __global__ void __launch_bounds__(256)
    lpq_delta_factors(Given a, int heads, int key_heads, int key_dim, int gates, float* unit_q, float* unit_k,
                      float* product, float* factor, float* weight) {
  const index_t t = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int h = warp; h < key_heads; h += warps) {
    const index_t first = (t * key_heads + h) * key_dim;
    const Pair<8> of(a.q + first, a.k + first, key_dim);
    const Units by(of, key_dim);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (32 * j + lane < key_dim)
        unit_q[first + 32 * j + lane] = of.q[j] * by.q, unit_k[first + 32 * j + lane] = of.k[j] * by.k;
    if (lane == 0) product[t * key_heads + h] = by.product;
  }
  for (int i = threadIdx.x; i < gates; i += blockDim.x)
    factor[t * gates + i] = Gate(a, t, gates, gates / heads, i).decay();
  for (int h = threadIdx.x; h < heads; h += blockDim.x)
    weight[t * heads + h] = strength_of(a.strength, a.beta[t * heads + h]);
}

namespace {

// Of a step, what the factors are made of stands in for q to weight.
struct Delta {
  const float *q, *k, *product, *factor, *weight, *v;
  float* y;
  int heads, key_heads, key_dim, value_dim;
};

__device__ __forceinline__ StateColumns part_of(const Delta& a) {
  return StateColumns({a.heads, a.key_heads, a.key_dim, a.value_dim});
}

// What a token brings, in shared memory: k and q of length 1 with zeros behind them, decays (CHANNELS: a row's),
// values.
struct Token {
  const float *k, *q, *decays, *values;
  float strength, product;
};

// Sums over all rows by over_rows (columns.cuh).
__device__ __forceinline__ void over_warp(float (&sums)[2][2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) sums[0][c] = over_rows(sums[0][c]), sums[1][c] = over_rows(sums[1][c]);
}

// R, C: rows and columns of a thread. CHANNELS: a decay a row. sum(sums): over all rows of the state.
template <bool CHANNELS, int R, int C, class At, class Sum>
__device__ __forceinline__ void advance(StatePart<R, C>& state, const Token& token, const At& at, int there, float* y,
                                        const Sum& sum) {
  const float *k = token.k + at.row, *q = token.q + at.row;
  float sums[2][C] = {};  // products of k, and of q, with the columns of S'
#pragma unroll
  for (int j = 0; j < R; ++j) {
    const float factor = CHANNELS ? token.decays[8 * j + at.row] : token.decays[0], kj = k[8 * j], qj = q[8 * j];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      state.s[j][c] *= factor;
      sums[0][c] = __fmaf_rn(kj, state.s[j][c], sums[0][c]);
      sums[1][c] = __fmaf_rn(qj, state.s[j][c], sums[1][c]);
    }
  }
  sum(sums);
  float d[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    d[c] = token.strength * (token.values[at.first + c] - sums[0][c]);
    if (at.row == c && at.first + c < there) y[at.first + c] = __fmaf_rn(token.product, d[c], sums[1][c]);
  }
#pragma unroll
  for (int j = 0; j < R; ++j)
#pragma unroll
    for (int c = 0; c < C; ++c) state.s[j][c] = __fmaf_rn(k[8 * j], d[c], state.s[j][c]);
}

template <int R, bool CHANNELS>
__device__ void delta(const Delta& a, const Past& past) {
  constexpr int kRows = 8 * R, kTokens = kTokensAtOnce<R>;
  __shared__ __align__(16) float keys[2][kTokens][kRows], queries[2][kTokens][kRows], values[2][kTokens][kColumns];
  __shared__ __align__(16) float decays[2][kTokens][CHANNELS ? kRows : 1], scalars[2][kTokens][2];
  const StateColumns part = part_of(a);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const Column at;
  float* const kept = part.kept(past, run);
  StatePart<R> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.key_dim, a.value_dim, part.there, at);

  const auto fetch = [&](int buffer, int begin) {
    for (int i = 0; i < kTokens && begin + i < run.count; ++i) {
      const index_t t = run.first + begin + i, key = part.shared(t);
      fetch_floats(keys[buffer][i], a.k + key, kRows, a.key_dim, false);
      fetch_floats(queries[buffer][i], a.q + key, kRows, a.key_dim, false);
      fetch_floats(values[buffer][i], a.v + part.own(t), kColumns, part.there, false);
      if (CHANNELS)
        fetch_floats(decays[buffer][i], a.factor + (t * a.heads + part.head) * a.key_dim, kRows, a.key_dim, false);
      else if (threadIdx.x == 2) cp_async_4(shared_address(decays[buffer][i]), a.factor + t * a.heads + part.head, 4);
      if (threadIdx.x == 0) cp_async_4(shared_address(scalars[buffer][i]), a.weight + t * a.heads + part.head, 4);
      if (threadIdx.x == 1)
        cp_async_4(shared_address(scalars[buffer][i] + 1), a.product + t * a.key_heads + part.group, 4);
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
      const Token token{keys[buffer][i],   queries[buffer][i],    decays[buffer][i],
                        values[buffer][i], scalars[buffer][i][0], scalars[buffer][i][1]};
      advance<CHANNELS>(state, token, at, part.there, a.y + part.own(run.first + begin + i), over_warp);
    }
    __syncthreads();
  }
  if (kept) state.store(kept, a.key_dim, a.value_dim, part.there, at);
}

// The same bits for sequences of few tokens, mostly one: every block makes its factors itself, which saves a launch.
// All that a token brings is on its way, and the state too, before the first of it is waited for.
template <int R, bool CHANNELS>
__device__ void delta_step(const Delta& a, const Given& given, const Past& past) {
  constexpr int kRows = 8 * R, kLane = kRows / 32;
  __shared__ __align__(16) float keys[kRows], queries[kRows], values[kColumns], decays[CHANNELS ? kRows : 1];
  __shared__ StepSums<2> room;
  const StateColumns part = part_of(a);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const StepThread at;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  float* const kept = part.kept(past, run);
  StatePart<R, 4> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.key_dim, a.value_dim, part.there, at);
  for (index_t t = run.first; t < run.first + run.count; ++t) {
    const Pair<kLane> of(given.q + part.shared(t), given.k + part.shared(t), a.key_dim);
    const float value = thread < part.there ? a.v[part.own(t) + thread] : 0.0f;
    const float beta = given.beta[t * a.heads + part.head];
    const auto gate = [&](int i) {
      const int per = CHANNELS ? a.key_dim : 1;
      return Gate(given, t, a.heads * per, per, part.head * per + i);
    };
    if (CHANNELS) {
      for (int i = thread; i < kRows; i += kStepThreads) decays[i] = i < a.key_dim ? gate(i).decay() : 0.0f;
    } else {
      const float decay = gate(0).decay();
      if (thread == 0) decays[0] = decay;
    }
    if (thread < kColumns) values[thread] = value;
    const Units by(of, a.key_dim);
#pragma unroll
    for (int j = 0; j < kLane; ++j)
      if (warp == 0) keys[32 * j + lane] = of.k[j] * by.k;
      else queries[32 * j + lane] = of.q[j] * by.q;
    const Token token{keys, queries, decays, values, strength_of(given.strength, beta), by.product};
    __syncthreads();
    advance<CHANNELS>(state, token, at, part.there, a.y + part.own(t),
                      [&](float (&sums)[2][4]) { over_step(sums, room, at); });
    __syncthreads();
  }
  if (kept) state.store(kept, a.key_dim, a.value_dim, part.there, at);
}

}  // namespace

// blocks, step_blocks: that a multiprocessor holds at once.
#define LPQ_GATED_DELTA(r, blocks, step_blocks)                                                                  \
  extern "C" __global__ void __launch_bounds__(kColumnThreads, blocks) lpq_gated_delta_##r(Delta a, Past past) { \
    delta<r, false>(a, past);                                                                                    \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(kColumnThreads, blocks)                                           \
      lpq_gated_delta_channels_##r(Delta a, Past past) {                                                         \
    delta<r, true>(a, past);                                                                                     \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(kStepThreads, step_blocks)                                        \
      lpq_gated_delta_step_##r(Delta a, Given given, Past past) {                                                \
    delta_step<r, false>(a, given, past);                                                                        \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(kStepThreads, step_blocks)                                        \
      lpq_gated_delta_step_channels_##r(Delta a, Given given, Past past) {                                       \
    delta_step<r, true>(a, given, past);                                                                         \
  }
LPQ_GATED_DELTA(4, 8, 16)
LPQ_GATED_DELTA(8, 6, 12)
LPQ_GATED_DELTA(16, 5, 8)
LPQ_GATED_DELTA(32, 3, 4)
