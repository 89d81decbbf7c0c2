// A causal convolution of each channel over a few tokens (ops/recurrent.h, ShortConv).
//   thread -> one channel, kTokens tokens one after another
#include "cuda/recurrent/past.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

constexpr int kTokens = 16;

// What is convolved: columns of a matrix, times others of it where `times` is given.
struct Convolved {
  const float *x, *times;
  index_t pitch;
  __device__ float operator()(int t, int c) const {
    const float v = x[t * pitch + c];
    return times ? v * times[t * pitch + c] : v;
  }
};

// That at place p of a run, or before it.
__device__ __forceinline__ float at(const Convolved& x, const Past& past, const Run& run, int p, int c, int channels,
                                    int kept) {
  if (p >= 0) return x(run.first + p, c);
  if (run.earlier == 0 || p < -kept) return 0;
  return past.state[(static_cast<index_t>(run.slot) * kept + kept + p) * channels + c];
}

}  // namespace

extern "C" __global__ void lpq_short_conv(const float* x, const float* times, const float* gate, index_t pitch,
                                          const void* weight, int weight_type, const void* bias, int bias_type,
                                          float* y, Past past, int channels, int taps, int silu) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * kTokens,
            end = min(begin + kTokens, past.tokens);
  if (c >= channels || begin >= end) return;
  const Convolved from{x, times, pitch};
  const float shift = bias ? load_any(bias, bias_type, c) : 0.0f;
  int s = sequence_of(past.starts, past.sequences, begin);
  Run run = run_of(past, s);
  for (int t = begin; t < end; ++t) {
    while (t >= run.first + run.count && s + 1 < past.sequences) run = run_of(past, ++s);
    const int place = t - run.first;
    if (place < 0 || place >= run.count) continue;
    float sum = 0;
    for (int j = 0; j < taps; ++j)
      sum = __fmaf_rn(load_any(weight, weight_type, static_cast<index_t>(c) * taps + j),
                      at(from, past, run, place - taps + 1 + j, c, channels, taps - 1), sum);
    sum += shift;
    if (silu) sum = sum / (1.0f + expf(-sum));
    if (gate) sum *= gate[t * pitch + c];
    y[static_cast<index_t>(t) * channels + c] = sum;
  }
}

// The newest tokens of each sequence, of which some may have been in the state: rows are read before they are written,
// for later rows are read for earlier ones.
extern "C" __global__ void lpq_short_conv_state(const float* x, const float* times, index_t pitch, Past past,
                                                int channels, int taps) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, kept = taps - 1;
  if (blockIdx.x == 0) check_slot(past, s);
  const Run run = run_of(past, s);
  if (c >= channels || run.count == 0) return;
  const Convolved from{x, times, pitch};
  for (int i = 0; i < kept; ++i)
    past.state[(static_cast<index_t>(run.slot) * kept + i) * channels + c] =
        at(from, past, run, run.count - kept + i, c, channels, kept);
}
