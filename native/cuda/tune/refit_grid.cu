// Coarse scales and zeros that fit fixed codes better (ops/tune.h, TuneRefitGrid), a group of all rows at a time.
#include "cuda/nn/block_sum.cuh"
#include "cuda/quant/number.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

// ones[j]: the sum of row j of M over j's own group. A warp a row.
extern "C" __global__ void lpq_tune_group_sums(const float* m, double* ones, int k, int length) {
  const int j = blockIdx.x * blockDim.y + threadIdx.y;
  if (j >= k) return;
  const index_t at = static_cast<index_t>(j) * k + j / length * length;
  double sum = 0;
  for (int i = threadIdx.x; i < length; i += 32) sum += static_cast<double>(m[at + i]);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) ones[j] = sum;
}

namespace {

// How a row's error changes where a group's weights change by a (level - zero) + b: 2 (a p + b q) + a^2 A + 2 a b B +
// b^2 C.
struct Change {
  double p, q, a, b, c;
  __device__ double operator()(double by, double shift) const {
    return 2 * (by * p + shift * q) + by * by * a + 2 * by * shift * b + shift * shift * c;
  }
};

struct Choice {
  float scale, zero;
  double gain;
  // Weights were (level - was_zero) * was, and become (level - z) * s.
  __device__ void attempt(const Change& change, float was, float was_zero, float s, float z) {
    const double by = static_cast<double>(s) - was, shift = static_cast<double>(s) * (was_zero - z);
    const double gained = -change(by, shift);
    if (gained > gain) scale = s, zero = z, gain = gained;
  }
};

}  // namespace

// Group `group` of each row, a block a row. off [N, length]: (W - T) M of the group's columns as the groups before left
// it; by [N, K]: what weights change by, of the group's columns written here.
extern "C" __global__ void __launch_bounds__(128)
    lpq_tune_refit_group(const float* off, const float* m, const double* ones, const float* level, float* scale,
                         float* zero, float* by, unsigned* moved, int k, int length, int groups, int group, int dtype,
                         float unit, int zeros, float least, float highest) {
  extern __shared__ float v[];
  __shared__ Choice chosen;
  const index_t row = blockIdx.x;
  const int first = group * length;
  float &s = scale[row * groups + group], &z = zero[row * groups + group];
  const float was = s, was_zero = z;
  for (int i = threadIdx.x; i < length; i += blockDim.x) v[i] = level[row * k + first + i] - was_zero;
  __syncthreads();
  Change change{};
  for (int i = threadIdx.x; i < length; i += blockDim.x) {
    const double own = v[i], apart = off[row * length + i];
    change.p += own * apart, change.q += apart;
    change.b += own * ones[first + i], change.c += ones[first + i];
    double product = 0;  // M is symmetric: neighbours read neighbours
    for (int j = 0; j < length; ++j)
      product += static_cast<double>(m[static_cast<index_t>(first + j) * k + first + i]) * static_cast<double>(v[j]);
    change.a += own * product;
  }
  change.p = block_sum(change.p), change.q = block_sum(change.q), change.a = block_sum(change.a);
  change.b = block_sum(change.b), change.c = block_sum(change.c);
  if (threadIdx.x == 0) {
    Choice choice{was, was_zero, 0};
    uint8_t stored[4];
    if (zeros) {
      for (int up = -1; up <= 1; up += 2) {
        const float next = was_zero + static_cast<float>(up);
        if (next < least || next > highest) continue;
        // The weights change by (s + x)(level - z - up) - s (level - z): a quadratic in x.
        const double d = -up, square = change.a + 2 * d * change.b + d * d * change.c,
                     line = change.p + d * change.q + was * d * (change.b + d * change.c);
        if (!(square > 0)) continue;
        const float fit = static_cast<float>(was - line / square);
        const float held = dtype == kNumberF16    ? __half2float(__float2half_rn(fit))
                           : dtype == kNumberBf16 ? __bfloat162float(__float2bfloat16_rn(fit))
                                                  : fit;
        const float ratio = held / was;
        if (ratio > 0.5f && ratio < 2.0f) choice.attempt(change, was, was_zero, held, next);
      }
    } else {
      write_number(dtype, stored, 0, __fdiv_rn(was, unit));
      const int code = stored[0];
      for (int up = -1; up <= 1; up += 2) {
        stored[0] = static_cast<uint8_t>(code + up);
        const float held = read_number(dtype, stored, 0) * unit;
        if (isfinite(held) && held > 0) choice.attempt(change, was, was_zero, held, was_zero);
      }
    }
    chosen = choice;
    if (choice.gain > 0) {
      s = choice.scale, z = choice.zero;
      ++moved[row];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < length; i += blockDim.x) {
    const float code = v[i] + was_zero;
    by[row * k + first + i] = chosen.gain > 0 ? (code - chosen.zero) * chosen.scale - (code - was_zero) * was : 0.0f;
  }
}

// moved [1] = the sum of counts [rows], by one block.
extern "C" __global__ void lpq_tune_count(const unsigned* counts, int rows, double* moved) {
  double sum = 0;
  for (int i = threadIdx.x; i < rows; i += blockDim.x) sum += counts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *moved = sum;
}
