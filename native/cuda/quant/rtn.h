// Arguments of round-to-nearest (rtn.cu), shared with the host.
#pragma once
#include <cstdint>

#include "cuda/quant/grid.cuh"

namespace lpq::cuda {

enum ZeroKind : int { kZeroConstant, kZeroWhole, kZeroReal };

struct RtnStats {
  double error, norm;
  unsigned long long overflow, underflow, not_finite;
  long long first;  // -1: none
  float smallest, largest;
};

struct RtnArgs {
  GridSpec grid;
  const uint8_t* w;
  int w_type;
  int64_t n, k;
  int length, groups, staged;
  uint8_t *codes, *scales, *zeros;
  int64_t row_bytes;  // of codes
  int scale_type, zero_type, zero_kind;
  float constant_zero, levels;
  float least_scale;  // of the scale type
  float top;          // where a float grid puts the largest magnitude
  int top_power, cover, has_global, given;
  const float* global;  // one f32, when has_global
  float* largest;       // [n], of the pass that finds it
  RtnStats* stats;      // [n]
};

}  // namespace lpq::cuda
