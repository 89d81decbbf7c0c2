// What the search for orders of channels and the choice of precisions measure (native/ops/w4ax.h): the CPU's bytes.
#pragma once
#include "cuda/nn/token_codes.cuh"
#include "cuda/quant/search.h"

namespace lpq::cuda {

// A thread a column c = 128 blockIdx.x + thread, rows in their order, eight of them on the way at once.
template <class T>
__device__ __forceinline__ void channel_statistics(const T* x, float* most, double* moments, int64_t rows, int k,
                                                   uint32_t* fault) {
  constexpr int kHeld = 8;
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= k) return;
  float peak = most[c];
  double sum = moments[c];
  bool bad = false;
  const auto see = [&](float v) {
    const float size = fabsf(v);
    bad |= !(size <= 3.40282347e38f);
    peak = fmaxf(peak, size);
    const double wide = static_cast<double>(size);
    sum += wide * wide;
  };
  const T* from = x + c;
  int64_t t = 0;
  for (; t + kHeld <= rows; t += kHeld) {
    float held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = widen(from[(t + i) * k]);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) see(held[i]);
  }
  for (; t < rows; ++t) see(widen(from[t * k]));
  if (bad) *fault = 1;
  most[c] = peak;
  moments[c] = sum;
}

// A block of threads a block of columns. Sixteen lanes a row, 16 rows at once:
//   (thread, i) -> row thread / 16, entry thread % 16 + 16 i of the block
// A lane's eight terms add in f32. Its half of the warp hands the 16 sums on, one after another in f64; thread `choice`
// adds the rows of a turn in their order.
__device__ __forceinline__ void block_errors(const BlockErrorsArgs& a) {
  constexpr int kLanes = 16, kRows = kSearchThreads / kLanes, kEach = kBlockColumns / kLanes;
  __shared__ double row_sums[kRows][kMostChoices];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, row = thread / kLanes;
  int column[kEach];
  float weight[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    column[i] = a.order[static_cast<int64_t>(blockIdx.x) * kBlockColumns + lane + kLanes * i];
    if (column[i] < 0 || column[i] >= a.k) *a.fault = 1, column[i] = 0;
    weight[i] = a.weight[column[i]];
  }
  double total = 0;
  // Threads of a block stay together: those past the last row look at it again, and nobody adds what they find.
  for (int64_t first = 0; first < a.rows; first += kRows) {
    const float* from = a.x + ::min(first + row, a.rows - 1) * a.k;
    float v[kEach], most = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = from[column[i]], most = fmaxf(most, fabsf(v[i]));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int c = 0; c < a.count; ++c) {
      const float scale = quantize_scale(most, a.ratio[c]), top = a.top[c],
                  inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
      float part = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float error = quantize_code(v[i], inverse, top) * scale - v[i];
        part += weight[i] * (error * error);
      }
      double sum = 0;
#pragma unroll
      for (int l = 0; l < kLanes; ++l) sum += static_cast<double>(__shfl_sync(0xffffffffu, part, (thread & 16) + l));
      if (lane == 0) row_sums[row][c] = sum;
    }
    __syncthreads();
    if (thread < a.count)
      for (int r = 0; r < kRows && first + r < a.rows; ++r) total += row_sums[r][thread];
    __syncthreads();
  }
  if (thread < a.count) a.errors[static_cast<int64_t>(blockIdx.x) * a.count + thread] = total;
}

}  // namespace lpq::cuda
