// Selective state spaces (ops/recurrent.h, SelectiveScan), token by token:
//   S = exp(rate d) S + B (d x),  y = Cᵀ S + skip x
#include "cuda/recurrent/columns.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

// What d is made of: steps of a token, `width` of them, as they come.
struct Given {
  const float* step;
  const void* bias;
  int bias_type, width;
  float least, most;
  __device__ float at(index_t t, int i) const { return step[t * width + i]; }
  __device__ float bias_at(int i) const { return load_any(bias, bias_type, i); }
  // d: softplus(step + bias) within its bounds.
  __device__ float bounded(float at) const {
    const float d = at > 20.0f ? at : log1pf(expf(at));
    return fminf(fmaxf(d, least), most);
  }
};

}  // namespace

// d of every token.
extern "C" __global__ void lpq_scan_steps(Given given, float* made, index_t count) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += each)
    made[i] = given.bounded(given.step[i] + given.bias_at(static_cast<int>(i % given.width)));
}

namespace {

// Of a step, Given stands in for step.
struct Scan {
  const float *x, *b, *c, *step;
  const void *rate, *skip;
  float* y;
  int heads, head_dim, groups, size, rate_type, skip_type;
};

__device__ __forceinline__ StateColumns part_of(const Scan& a) {
  return StateColumns({a.heads, a.groups, a.size, a.head_dim});
}

// A thread's rates and skips, of R rows and C columns. CHANNELS: rates and steps of channels, not of heads.
template <int R, int C, bool CHANNELS>
struct Rates {
  static constexpr int kRates = CHANNELS ? R : 1, kSkips = CHANNELS ? C : 1;
  float rate[kRates][kSkips] = {}, skip[kSkips] = {};
  template <class At>
  __device__ Rates(const Scan& a, const StateColumns& part, const At& at) {
    if constexpr (!CHANNELS) {
      rate[0][0] = load_any(a.rate, a.rate_type, part.head), skip[0] = load_any(a.skip, a.skip_type, part.head);
    } else {
#pragma unroll
      for (int c = 0; c < kSkips; ++c) {
        const index_t channel = static_cast<index_t>(part.head) * a.head_dim + part.first + at.first + c;
        if (at.first + c >= part.there) continue;
        skip[c] = load_any(a.skip, a.skip_type, channel);
#pragma unroll
        for (int j = 0; j < kRates; ++j)
          if (8 * j + at.row < a.size) rate[j][c] = load_any(a.rate, a.rate_type, channel * a.size + 8 * j + at.row);
      }
    }
  }
  // exp of them, once.
  __device__ void made() {
#pragma unroll
    for (auto& row : rate)
#pragma unroll
      for (float& r : row) r = -expf(r);
  }
};

// What a token brings, in shared memory: B and C with zeros behind them, x, d (CHANNELS: of every column).
struct Token {
  const float *in, *out, *x, *step;
};

// sum(sums): over all rows of the state.
template <bool CHANNELS, int R, int C, class At, class Sum>
__device__ __forceinline__ void advance(StatePart<R, C>& state, const Token& token, const Rates<R, C, CHANNELS>& by,
                                        const At& at, int there, float* y, const Sum& sum) {
  const float *b = token.in + at.row, *out = token.out + at.row;
  float x[C], in[C], step[C], sums[1][C] = {};
#pragma unroll
  for (int c = 0; c < C; ++c) {
    x[c] = token.x[at.first + c], step[c] = token.step[CHANNELS ? at.first + c : 0];
    in[c] = step[c] * x[c];
  }
  const float decay = CHANNELS ? 0.0f : expf(by.rate[0][0] * step[0]);
#pragma unroll
  for (int j = 0; j < R; ++j) {
    const float bj = b[8 * j], cj = out[8 * j];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float factor = CHANNELS ? expf(by.rate[CHANNELS ? j : 0][CHANNELS ? c : 0] * step[c]) : decay;
      state.s[j][c] = __fmaf_rn(bj, in[c], factor * state.s[j][c]);
      sums[0][c] = __fmaf_rn(cj, state.s[j][c], sums[0][c]);
    }
  }
  sum(sums);
#pragma unroll
  for (int c = 0; c < C; ++c)
    if (at.row == c && at.first + c < there) y[at.first + c] = __fmaf_rn(by.skip[CHANNELS ? c : 0], x[c], sums[0][c]);
}

// Sums over all rows by over_rows (columns.cuh).
__device__ __forceinline__ void over_warp(float (&sums)[1][2]) {
  sums[0][0] = over_rows(sums[0][0]), sums[0][1] = over_rows(sums[0][1]);
}

template <int R, bool CHANNELS>
__device__ void scan(const Scan& a, const Past& past) {
  constexpr int kRows = 8 * R, kTokens = kTokensAtOnce<R>;
  __shared__ __align__(16) float ins[2][kTokens][kRows], outs[2][kTokens][kRows], xs[2][kTokens][kColumns];
  __shared__ __align__(16) float steps[2][kTokens][CHANNELS ? kColumns : 1];
  const StateColumns part = part_of(a);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const Column at;
  float* const kept = part.kept(past, run);
  StatePart<R> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.size, a.head_dim, part.there, at);
  Rates<R, 2, CHANNELS> rates(a, part, at);
  rates.made();

  const auto fetch = [&](int buffer, int begin) {
    for (int i = 0; i < kTokens && begin + i < run.count; ++i) {
      const index_t t = run.first + begin + i, group = part.shared(t), head = part.own(t);
      fetch_floats(ins[buffer][i], a.b + group, kRows, a.size, false);
      fetch_floats(outs[buffer][i], a.c + group, kRows, a.size, false);
      fetch_floats(xs[buffer][i], a.x + head, kColumns, part.there, false);
      if (CHANNELS) fetch_floats(steps[buffer][i], a.step + head, kColumns, part.there, false);
      else if (threadIdx.x == 0) cp_async_4(shared_address(steps[buffer][i]), a.step + t * a.heads + part.head, 4);
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
      const Token token{ins[buffer][i], outs[buffer][i], xs[buffer][i], steps[buffer][i]};
      advance(state, token, rates, at, part.there, a.y + part.own(run.first + begin + i), over_warp);
    }
    __syncthreads();
  }
  if (kept) state.store(kept, a.size, a.head_dim, part.there, at);
}

// The same bits for sequences of few tokens, mostly one: every block makes d itself, which saves a launch. All that a
// token brings is on its way, and the state too, before the first of it is waited for.
template <int R, bool CHANNELS>
__device__ void scan_step(const Scan& a, const Given& given, const Past& past) {
  constexpr int kRows = 8 * R, kEach = (kRows + kStepThreads - 1) / kStepThreads;
  __shared__ __align__(16) float ins[kRows], outs[kRows], xs[kColumns], steps[CHANNELS ? kColumns : 1];
  __shared__ StepSums<1> room;
  const StateColumns part = part_of(a);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const StepThread at;
  const int thread = static_cast<int>(threadIdx.x);
  float* const kept = part.kept(past, run);
  StatePart<R, 4> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.size, a.head_dim, part.there, at);
  for (index_t t = run.first; t < run.first + run.count; ++t) {
    float in[kEach], out[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = kStepThreads * i + thread;
      in[i] = row < a.size ? a.b[part.shared(t) + row] : 0.0f;
      out[i] = row < a.size ? a.c[part.shared(t) + row] : 0.0f;
    }
    const bool mine = thread < part.there;
    const float x = mine ? a.x[part.own(t) + thread] : 0.0f;
    // CHANNELS: a column's; else the head's.
    const int place = CHANNELS ? part.head * a.head_dim + part.first + (mine ? thread : 0) : part.head;
    const float step = given.at(t, place), bias = given.bias_at(place);
    Rates<R, 4, CHANNELS> rates(a, part, at);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int row = kStepThreads * i + thread; row < kRows) ins[row] = in[i], outs[row] = out[i];
    if (thread < kColumns) xs[thread] = x;
    if (thread < (CHANNELS ? kColumns : 1)) steps[thread] = given.bounded(step + bias);
    rates.made();
    __syncthreads();
    advance(state, Token{ins, outs, xs, steps}, rates, at, part.there, a.y + part.own(t),
            [&](float (&sums)[1][4]) { over_step(sums, room, at); });
    __syncthreads();
  }
  if (kept) state.store(kept, a.size, a.head_dim, part.there, at);
}

}  // namespace

// step_blocks: that a multiprocessor holds at once.
#define LPQ_SELECTIVE_SCAN(r, step_blocks)                                                                          \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_selective_scan_##r(Scan a, Past past) {          \
    scan<r, false>(a, past);                                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_selective_scan_channels_##r(Scan a, Past past) { \
    scan<r, true>(a, past);                                                                                         \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(kStepThreads, step_blocks)                                           \
      lpq_selective_scan_step_##r(Scan a, Given given, Past past) {                                                 \
    scan_step<r, false>(a, given, past);                                                                            \
  }
LPQ_SELECTIVE_SCAN(2, 16)
LPQ_SELECTIVE_SCAN(4, 16)
LPQ_SELECTIVE_SCAN(8, 12)
LPQ_SELECTIVE_SCAN(16, 8)
LPQ_SELECTIVE_SCAN(32, 4)

// Rates of more rows do not fit into registers beside the state.
#define LPQ_SELECTIVE_SCAN_CHANNELS(r)                                       \
  extern "C" __global__ void __launch_bounds__(kStepThreads)                 \
      lpq_selective_scan_step_channels_##r(Scan a, Given given, Past past) { \
    scan_step<r, true>(a, given, past);                                      \
  }
LPQ_SELECTIVE_SCAN_CHANNELS(2)
LPQ_SELECTIVE_SCAN_CHANNELS(4)
LPQ_SELECTIVE_SCAN_CHANNELS(8)
