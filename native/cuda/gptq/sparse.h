// Arguments of the kernels of 2:4 sparsity (sparse.cu), shared with the host.
#pragma once
#include <cstdint>

#include "cuda/quant/grid.cuh"

namespace lpq::cuda {

constexpr int kSparseBlock = 128;  // columns of a block: four a lane
constexpr int kSparseWarps = 4;    // rows of a thread block

struct SparseArgs {
  GridSpec grid;
  int n, k, first, width, groups;  // columns first .. first + width of k, whole fours
  const int32_t* group;            // [k]; null: no grid, scale 1
  const float *scale, *zero;       // [n, groups]
  const float* matrix;             // [k, k] U, or M (descend)
  const float* w;                  // [n, k] targets as updated so far, or the gradient (descend)
  float *level, *keep;             // [n, k]
  float* delta;                    // [n, kSparseBlock] scaled errors, or changes of What (descend)
  unsigned long long* moved;       // counts codes that changed (descend)
  int fixed;                       // keep is given and stays
};

}  // namespace lpq::cuda
