// A causal convolution of each channel over a few tokens (ops/recurrent.h, ShortConv).
//   thread -> one channel, `each` tokens one after another, of which the newest taps stay in registers
#include "cuda/recurrent/past.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

namespace {

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

// TAPS: how many, or 0: any number.
template <int TAPS>
__device__ void convolve(const Convolved& from, const float* gate, const void* weight, int weight_type, float shift,
                         float* y, const Past& past, int channels, int all_taps, int silu, int each) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * each, end = min(begin + each, past.tokens),
            taps = TAPS ? TAPS : all_taps;
  if (blockIdx.x == 0 && blockIdx.y == 0) check_runs(past);
  if (c >= channels || begin >= end) return;
  float by[TAPS ? TAPS : 1], seen[TAPS ? TAPS : 1];
#pragma unroll
  for (int j = 0; j < TAPS; ++j) by[j] = load_any(weight, weight_type, static_cast<index_t>(c) * taps + j);
  int s = sequence_of(past.starts, past.sequences, begin);
  Run run = run_of(past, s);
  bool first = true;  // of the run in this thread
  for (int t = begin; t < end; ++t) {
    for (; t >= run.first + run.count && s + 1 < past.sequences; first = true) run = run_of(past, ++s);
    const int place = t - run.first;
    if (place < 0 || place >= run.count) continue;
    float sum = 0;
    if (TAPS) {
#pragma unroll
      for (int j = 0; j < TAPS; ++j)
        seen[j] =
            j + 1 < TAPS && !first ? seen[j + 1] : at(from, past, run, place - taps + 1 + j, c, channels, taps - 1);
#pragma unroll
      for (int j = 0; j < TAPS; ++j) sum = __fmaf_rn(by[j], seen[j], sum);
      first = false;
    } else {
      for (int j = 0; j < taps; ++j)
        sum = __fmaf_rn(load_any(weight, weight_type, static_cast<index_t>(c) * taps + j),
                        at(from, past, run, place - taps + 1 + j, c, channels, taps - 1), sum);
    }
    sum += shift;
    if (silu) sum = sum / (1.0f + expf(-sum));
    if (gate) sum *= gate[t * from.pitch + c];
    y[static_cast<index_t>(t) * channels + c] = sum;
  }
}

}  // namespace

#define LPQ_SHORT_CONV(taps_of_it)                                                                                    \
  extern "C" __global__ void lpq_short_conv_##taps_of_it(                                                             \
      const float* x, const float* times, const float* gate, index_t pitch, const void* weight, int weight_type,      \
      const void* bias, int bias_type, float* y, Past past, int channels, int taps, int silu, int each) {             \
    const int c = min(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), channels - 1);                         \
    convolve<taps_of_it>({x, times, pitch}, gate, weight, weight_type, bias ? load_any(bias, bias_type, c) : 0.0f, y, \
                         past, channels, taps, silu, each);                                                           \
  }
LPQ_SHORT_CONV(0)
LPQ_SHORT_CONV(2)
LPQ_SHORT_CONV(3)
LPQ_SHORT_CONV(4)

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
