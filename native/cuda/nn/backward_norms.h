// Arguments of the norms' gradients (backward_norms.cuh), shared with the host.
#pragma once

namespace lpq {

constexpr int kHeld = 4;  // fours that a thread holds

struct NormGradient {
  const float *x, *dy;
  const void* weight;
  float* dx;
  long long rows;
  int weight_type, width, turns;
  float eps, offset;
  int accumulate, by_warp;
};

}  // namespace lpq
