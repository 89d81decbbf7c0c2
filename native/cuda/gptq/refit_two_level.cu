// Scales of a two-level grid near the unconstrained optimum, by the arithmetic of the CPU (cpu/gptq/refit.cpp): factors
// by coordinate descent, and the number of the row that fits them best, by turns.
#include "cuda/gptq/common.cuh"
#include "cuda/gptq/refit.h"
#include "lpq/two_level.h"

namespace lpq::cuda {
namespace {

constexpr int kRounds = 4;

__device__ __forceinline__ int64_t packed(int64_t i, int64_t j) { return i * (i + 1) / 2 + j; }

// A of a row: sums of products over the pieces of two groups.
struct RowProducts {
  const float* products;
  int pieces;

  __device__ __forceinline__ double of(int i, int j) const {
    const int g = max(i, j), h = min(i, j);
    if (pieces == 1) return products[packed(g, h)];
    double sum = 0;
    for (int x = g * pieces; x < (g + 1) * pieces; ++x)
      for (int y = h * pieces; y < (h + 1) * pieces && y <= x; ++y)
        sum += static_cast<double>(products[packed(x, y)]) * (g == h && y < x ? 2.0 : 1.0);
    return sum;
  }
};

__device__ __forceinline__ double sum_of_warp(double sum) {
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  return sum;
}

}  // namespace

// A row a block. The quadratic's other side is b = A s + r, s the scales before and r what a.residual holds. Shared
// memory: 4 doubles and 3 floats a group.
extern "C" __global__ void __launch_bounds__(128) lpq_gptq_refit_two_level(RefitArgs a, TwoLevel grid) {
  extern __shared__ double room[];
  __shared__ TwoLevel::Try tries[TwoLevel::kTries];
  const int n = a.groups, tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int64_t row = a.row0 + static_cast<int64_t>(blockIdx.x);
  const RowProducts matrix{a.products + a.pairs * blockIdx.x, a.pieces_per_group};
  double *const energy = room, *const diagonal = energy + n, *const b = diagonal + n, *const along = b + n;
  float *const ideal = reinterpret_cast<float*>(along + n), *const old = ideal + n, *const factors = old + n;
  if (a.solution[row * n] == 0) return;
  for (int g = tid; g < n; g += 128) {
    ideal[g] = a.solution[row * n + g], old[g] = a.scale[row * n + g];
    diagonal[g] = matrix.of(g, g);
    energy[g] = diagonal[g] * ideal[g] * ideal[g];
  }
  __syncthreads();
  // along = A times a vector.
  const auto multiply = [&](const float* vector) {
    for (int g = warp; g < n; g += 4) {
      double sum = 0;
      for (int h = lane; h < n; h += 32) sum += matrix.of(g, h) * vector[h];
      sum = sum_of_warp(sum);
      if (lane == 0) along[g] = sum;
    }
    __syncthreads();
  };
  multiply(old);
  for (int g = tid; g < n; g += 128) b[g] = along[g] + a.residual[row * n + g];
  const double largest = TwoLevel::largest(ideal, energy, n);
  if (!(largest > 0)) return;
  for (int i = tid; i < TwoLevel::kTries; i += 128) tries[i] = grid.attempt(ideal, energy, n, largest, i);
  __syncthreads();
  TwoLevel::Try best{1.0, INFINITY};
  for (int i = 0; i < TwoLevel::kTries; ++i)
    if (tries[i].price < best.price) best = tries[i];
  double c = best.channel;
  for (int g = tid; g < n; g += 128)
    factors[g] = energy[g] > 0 ? static_cast<float>(TwoLevel::factor(ideal[g] / c, ideal[g])) : 1.0f;
  __syncthreads();
  multiply(factors);
  // What decides is the same number in all threads.
  for (int round = 0; round < kRounds; ++round) {
    bool moved = false;
    for (int g = 0; g < n; ++g) {
      if (!(diagonal[g] > 0)) continue;
      const double pull = b[g] - (along[g] - diagonal[g] * factors[g]) * c;
      const double to = TwoLevel::factor(pull / (diagonal[g] * c), factors[g]), by = to - factors[g];
      if (by == 0) continue;
      moved = true;
      __syncthreads();
      for (int h = tid; h < n; h += 128) along[h] += matrix.of(g, h) * by;
      if (tid == 0) factors[g] = static_cast<float>(to);
      __syncthreads();
    }
    double square = 0, line = 0;
    for (int g = 0; g < n; ++g) line += b[g] * factors[g], square += factors[g] * along[g];
    const double fitted = square > 0 && line > 0 ? grid.channel(line / square) : c;
    if (!moved && fitted == c) break;
    c = fitted;
  }
  // Lower than with the scales before? d A d - 2 r d of the difference d.
  __syncthreads();
  for (int g = tid; g < n; g += 128) ideal[g] = static_cast<float>(factors[g] * c - old[g]);
  __syncthreads();
  multiply(ideal);
  double change = 0;
  for (int g = 0; g < n; ++g) change += ideal[g] * (along[g] - 2 * static_cast<double>(a.residual[row * n + g]));
  if (!(change < 0)) return;
  for (int g = tid; g < n; g += 128) a.scale[row * n + g] = static_cast<float>(factors[g] * c);
  if (tid == 0) atomicAdd(a.refitted, 1ull);
}

}  // namespace lpq::cuda
