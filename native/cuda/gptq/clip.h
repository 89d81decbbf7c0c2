// Arguments of the clip search (clip.cu), shared with the host.
#pragma once
#include <cstdint>

#include "cuda/quant/grid.cuh"

namespace lpq::cuda {

struct ClipArgs {
  GridSpec grid;
  int n, groups;
  int columns;                // of the sorted targets
  int pieces;                 // per group
  const float* t;             // [n, columns], sorted by group
  const uint32_t* fragments;  // per piece: the metric as tensor core operands
  const float* weight;        // per piece: what its costs are multiplied by
  float *scale, *zero;        // [n, groups]
  int symmetric, both_signs, steps, candidates;
  float constant_zero;
  double shrink;
  int scale_kind;  // 0 fine, 1 e8m0, 2 e4m3
  float scale_unit, least_scale;
  float low, high;  // the levels that a group's extremes are put at
};

}  // namespace lpq::cuda
