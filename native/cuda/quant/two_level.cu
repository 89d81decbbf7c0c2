// Two-level scales, by the arithmetic of the CPU: one block a row.
#include "cuda/quant/number.cuh"
#include "lpq/two_level.h"

namespace lpq::cuda {

// A thread tries each channel scale; the first of the cheapest wins. scale [n, groups], in place.
extern "C" __global__ void __launch_bounds__(256)
    lpq_two_level_scales(const float* energies, int64_t groups, TwoLevel grid, float* scales) {
  __shared__ TwoLevel::Try tries[TwoLevel::kTries];
  __shared__ double channel;
  const float* energy = energies + blockIdx.x * groups;
  float* scale = scales + blockIdx.x * groups;
  const double largest = TwoLevel::largest(scale, energy, groups);
  if (largest > 0)
    for (int i = threadIdx.x; i < TwoLevel::kTries; i += blockDim.x)
      tries[i] = grid.attempt(scale, energy, groups, largest, i);
  __syncthreads();
  if (threadIdx.x == 0) {
    TwoLevel::Try best{1.0, INFINITY};
    for (int i = 0; largest > 0 && i < TwoLevel::kTries; ++i)
      if (tries[i].price < best.price) best = tries[i];
    channel = best.channel;
  }
  __syncthreads();
  for (int64_t g = threadIdx.x; g < groups; g += blockDim.x)
    scale[g] = static_cast<float>((energy[g] > 0 ? TwoLevel::factor(scale[g] / channel, scale[g]) : 1) * channel);
}

// A thread sums the columns of its groups in their order.
extern "C" __global__ void __launch_bounds__(256)
    lpq_group_energy(const uint8_t* w, int w_type, int64_t k, const int32_t* group, const float* m, int64_t groups,
                     float* energy, uint32_t* fault) {
  const int64_t row = blockIdx.x;
  if (row == 0)
    for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
      if (group[j] < 0 || group[j] >= groups) *fault = 1;
  for (int64_t g = threadIdx.x; g < groups; g += blockDim.x) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (group[j] != g) continue;
      const double x = read_number(w_type, w, row * k + j);
      sum += m ? x * x * m[j * k + j] : x * x;
    }
    energy[row * groups + g] = static_cast<float>(sum);
  }
}

}  // namespace lpq::cuda
