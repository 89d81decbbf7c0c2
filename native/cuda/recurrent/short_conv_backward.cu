// The gradient of short convolutions (ops/backward_recurrent.h, ShortConvBackward):
//   thread -> one channel, `each` tokens one after another
#include "cuda/recurrent/past.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

// Calls of(t, run) for each of `each` tokens of a block that is in a sequence.
template <class F>
__device__ void over_tokens(const Past& past, int each, F of) {
  const int begin = blockIdx.y * each, end = min(begin + each, past.tokens);
  if (begin >= end) return;
  int s = sequence_of(past.starts, past.sequences, begin);
  Run run = run_of(past, s);
  for (int t = begin; t < end; ++t) {
    while (t >= run.first + run.count && s + 1 < past.sequences) run = run_of(past, ++s);
    if (t >= run.first && t < run.first + run.count) of(t, run);
  }
}

}  // namespace

// slope [T, channels], of what the convolution gives, and where there is a gate its own gradient.
extern "C" __global__ void lpq_short_conv_backward_slopes(const float* x, const float* times, const float* gate,
                                                          index_t pitch, const void* weight, int weight_type,
                                                          const void* bias, int bias_type, const float* dy,
                                                          float* slope, float* dgate, Past past, int channels, int taps,
                                                          int silu, int each) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_runs(past);
  if (c >= channels) return;
  const float shift = bias ? load_any(bias, bias_type, c) : 0.0f;
  over_tokens(past, each, [&](int t, const Run& run) {
    float of = dy[static_cast<index_t>(t) * channels + c], sum = 0, share = 1;
    if (silu || gate) {
      for (int j = max(0, taps - 1 - (t - run.first)); j < taps; ++j) {
        const index_t at = static_cast<index_t>(t - taps + 1 + j) * pitch + c;
        sum = __fmaf_rn(load_any(weight, weight_type, static_cast<index_t>(c) * taps + j),
                        times ? x[at] * times[at] : x[at], sum);
      }
      sum += shift;
      if (silu) share = 1.0f / (1.0f + expf(-sum));
    }
    if (gate) {
      dgate[t * pitch + c] = of * sum * share;
      of *= gate[t * pitch + c];
    }
    slope[static_cast<index_t>(t) * channels + c] = silu ? of * share * __fmaf_rn(sum, 1.0f - share, 1.0f) : of;
  });
}

// dx and, with factors, theirs.
extern "C" __global__ void lpq_short_conv_backward(const float* x, const float* times, index_t pitch,
                                                   const void* weight, int weight_type, const float* slope, float* dx,
                                                   float* dtimes, Past past, int channels, int taps, int each) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  over_tokens(past, each, [&](int t, const Run& run) {
    float sum = 0;
    for (int j = 0, count = min(taps, run.first + run.count - t); j < count; ++j)
      sum = __fmaf_rn(load_any(weight, weight_type, static_cast<index_t>(c) * taps + taps - 1 - j),
                      slope[static_cast<index_t>(t + j) * channels + c], sum);
    const index_t at = t * pitch + c;
    dx[at] = times ? sum * times[at] : sum;
    if (times) dtimes[at] = sum * x[at];
  });
}
