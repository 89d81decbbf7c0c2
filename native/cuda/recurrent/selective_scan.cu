// Selective state spaces (ops/recurrent.h, SelectiveScan), token by token:
//   S = exp(rate d) S + B (d x),  y = Cᵀ S + skip x
#include "cuda/recurrent/columns.cuh"

using namespace lpq;
using namespace lpq::cuda;

// d of every token: softplus(step + bias) within its bounds.
extern "C" __global__ void lpq_scan_steps(const float* step, const void* bias, int bias_type, int width, float least,
                                          float most, float* made, index_t count) {
  const index_t each = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += each) {
    const float at = step[i] + load_any(bias, bias_type, i % width);
    const float d = at > 20.0f ? at : log1pf(expf(at));
    made[i] = fminf(fmaxf(d, least), most);
  }
}

namespace {

struct Scan {
  const float *x, *b, *c, *step;
  const void *rate, *skip;
  float* y;
  int heads, head_dim, groups, size, rate_type, skip_type;
};

// R: rows of a thread. CHANNELS: rates and steps of channels, not of heads. grid: (heads * blocks of kColumns columns,
// sequences).
template <int R, bool CHANNELS>
__device__ void scan(const Scan& a, const Past& past) {
  constexpr int kRows = 8 * R, kTokens = kTokensAtOnce<R>;
  __shared__ __align__(16) float ins[2][kTokens][kRows], outs[2][kTokens][kRows], xs[2][kTokens][kColumns];
  __shared__ __align__(16) float steps[2][kTokens][CHANNELS ? kColumns : 1];
  const int parts = (a.head_dim + kColumns - 1) / kColumns, head = blockIdx.x / parts,
            first = blockIdx.x % parts * kColumns, there = min(kColumns, a.head_dim - first);
  const int group = head / (a.heads / a.groups);
  if (blockIdx.x == 0) check_slot(past, blockIdx.y);
  const Run run = run_of(past, blockIdx.y);
  if (run.count == 0) return;
  const Column at;
  float* const kept =
      run.slot < 0 ? nullptr
                   : past.state + (static_cast<index_t>(run.slot) * a.heads + head) * a.size * a.head_dim + first;
  StatePart<R> state;
  state.load(run.earlier > 0 ? kept : nullptr, a.size, a.head_dim, there, at);
  float rate[CHANNELS ? R : 1][2] = {}, skip[2] = {};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const index_t channel = static_cast<index_t>(head) * a.head_dim + first + at.first + c;
    if (at.first + c >= there) continue;
    skip[c] = load_any(a.skip, a.skip_type, CHANNELS ? channel : head);
    if (!CHANNELS) rate[0][c] = -expf(load_any(a.rate, a.rate_type, head));
    else
#pragma unroll
      for (int j = 0; j < R; ++j)
        if (8 * j + at.row < a.size)
          rate[j][c] = -expf(load_any(a.rate, a.rate_type, channel * a.size + 8 * j + at.row));
  }

  const auto fetch = [&](int buffer, int begin) {
    for (int i = 0; i < kTokens && begin + i < run.count; ++i) {
      const index_t t = run.first + begin + i, of_group = (t * a.groups + group) * a.size,
                    of_head = (t * a.heads + head) * a.head_dim + first;
      fetch_floats(ins[buffer][i], a.b + of_group, kRows, a.size, false);
      fetch_floats(outs[buffer][i], a.c + of_group, kRows, a.size, false);
      fetch_floats(xs[buffer][i], a.x + of_head, kColumns, there, false);
      if (CHANNELS) fetch_floats(steps[buffer][i], a.step + of_head, kColumns, there, false);
      else if (threadIdx.x == 0) cp_async_4(shared_address(steps[buffer][i]), a.step + t * a.heads + head, 4);
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
      const float *b = ins[buffer][i] + at.row, *out = outs[buffer][i] + at.row;
      float x[2], in[2], step[2], decay[2], sum[2] = {};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        x[c] = xs[buffer][i][at.first + c];
        step[c] = CHANNELS ? steps[buffer][i][at.first + c] : steps[buffer][i][0];
        in[c] = step[c] * x[c];
        decay[c] = CHANNELS ? 0.0f : expf(rate[0][c] * step[c]);
      }
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float bj = b[8 * j], cj = out[8 * j];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float factor = CHANNELS ? expf(rate[j][c] * step[c]) : decay[c];
          state.s[j][c] = __fmaf_rn(bj, in[c], factor * state.s[j][c]);
          sum[c] = __fmaf_rn(cj, state.s[j][c], sum[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) sum[c] = __fmaf_rn(skip[c], x[c], over_rows(sum[c]));
      if (at.row < 2 && at.first + at.row < there)
        a.y[(static_cast<index_t>(run.first + begin + i) * a.heads + head) * a.head_dim + first + at.first + at.row] =
            at.row == 0 ? sum[0] : sum[1];
    }
    __syncthreads();
  }
  if (kept) state.store(kept, a.size, a.head_dim, there, at);
}

}  // namespace

#define LPQ_SELECTIVE_SCAN(r)                                                                                       \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_selective_scan_##r(Scan a, Past past) {          \
    scan<r, false>(a, past);                                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(kColumnThreads) lpq_selective_scan_channels_##r(Scan a, Past past) { \
    scan<r, true>(a, past);                                                                                         \
  }
LPQ_SELECTIVE_SCAN(2)
LPQ_SELECTIVE_SCAN(4)
LPQ_SELECTIVE_SCAN(8)
LPQ_SELECTIVE_SCAN(16)
LPQ_SELECTIVE_SCAN(32)
