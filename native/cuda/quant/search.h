// Arguments of block_errors (search.cuh), shared with the host.
#pragma once
#include <cstdint>

namespace lpq::cuda {

constexpr int kBlockColumns = 128;
constexpr int kSearchThreads = 256;
constexpr int kMostChoices = 16;

struct BlockErrorsArgs {
  const float* x;        // [rows, k]
  const float* weight;   // [k]
  const int32_t* order;  // [128 gridDim.x]
  double* errors;        // [gridDim.x, count]
  int64_t rows;
  int k;
  int count;
  float ratio[kMostChoices];  // clip / top
  float top[kMostChoices];
  uint32_t* fault;
};

}  // namespace lpq::cuda
