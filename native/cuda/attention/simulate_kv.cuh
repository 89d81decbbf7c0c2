// Keys or values as a cache of few bits gives them back, channel by channel (native/ops/w4ax.h): the CPU's bytes.
#pragma once
#include "cuda/types.cuh"

namespace lpq::cuda {

__device__ __forceinline__ float through_half(float v) { return __half2float(__float2half_rn(v)); }

// Codes of a channel over a run of tokens, from `low` on in steps of f16.
struct ChannelGrid {
  float zero, scale, inverse, top;

  __device__ __forceinline__ ChannelGrid(float low, float high, float most)
      : zero(through_half(low)),
        scale(through_half(__fdiv_rn(high - zero, most))),
        inverse(scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f),
        top(most) {}
  __device__ __forceinline__ float operator()(float x) const {
    const float v = fminf(fmaxf((x - zero) * inverse, 0.0f), top);
    return __fmaf_rn((v + 12582912.0f) - 12582912.0f, scale, zero);
  }
};

struct TokenRun {
  int first, count;
};

// Run `index` of `group` tokens of all sequences; none: count 0. Starts that do not cover the tokens set the fault.
__device__ __forceinline__ TokenRun run_of(const int32_t* starts, int sequences, int tokens, int group, int index,
                                           uint32_t* fault) {
  if (starts[0] != 0 || starts[sequences] != tokens) {
    *fault = 1;
    return {0, 0};
  }
  for (int s = 0; s < sequences; ++s) {
    const int first = starts[s], end = starts[s + 1];
    if (first < 0 || end < first || end > tokens) {
      *fault = 1;
      return {0, 0};
    }
    const int runs = (end - first + group - 1) / group;
    if (index < runs) return {first + index * group, ::min(group, end - first - index * group)};
    index -= runs;
  }
  return {0, 0};
}

// A block of threads run `index`, a thread a channel c = 128 blockIdx.x + thread; the run is read again for each of the
// ranges, from L1.
template <class T>
__device__ __forceinline__ void simulate_kv(const T* x, const int32_t* starts, T* y, int sequences, int tokens,
                                            int width, int group, float top, int clip, int index, uint32_t* fault) {
  constexpr int kClips = 8;
  const TokenRun run = run_of(starts, sequences, tokens, group, index, fault);
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (run.count == 0 || c >= width) return;
  const index_t first = static_cast<index_t>(run.first) * width + c;
  float low = widen(x[first]), high = low;
  for (int t = 1; t < run.count; ++t) {
    const float v = widen(x[first + static_cast<index_t>(t) * width]);
    low = fminf(low, v), high = fmaxf(high, v);
  }
  ChannelGrid best(low, high, top);
  double least = 0;
  for (int i = 0; clip && i < kClips; ++i) {
    const float in = 0.025f * static_cast<float>(i) * (high - low);
    const ChannelGrid grid(low + in, high - in, top);
    double error = 0;
    for (int t = 0; t < run.count; ++t) {
      const float v = widen(x[first + static_cast<index_t>(t) * width]);
      const double off = static_cast<double>(v) - static_cast<double>(grid(v));
      error += off * off;
    }
    if (i == 0 || error < least) least = error, best = grid;
  }
  for (int t = 0; t < run.count; ++t) {
    const index_t at = first + static_cast<index_t>(t) * width;
    y[at] = narrow<T>(best(widen(x[at])));
  }
}

}  // namespace lpq::cuda
