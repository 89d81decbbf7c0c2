// The inner loops of round-to-nearest, compiled once an instruction set. All variants give the same bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"

namespace lpq {

// Squared error (of what the stored code, zero and scale decode to) and squared norm of a row. Element i of a group
// adds to partial sum i mod 16 and the partial sums add in their order, so the result is the same everywhere.
struct RtnSums {
  static constexpr int kLanes = 16;
  double error = 0, norm = 0;
};

// One row: codes are byte codes, choices one a group.
struct RtnRow {
  const float* w;
  int64_t groups, length;
  const ScaleChoice* choices;
  float global;
  uint8_t* codes;
  RtnSums* sums;
};

struct RtnKernels {
  // n weights, f32, f16 or bf16 at any byte address, as f32.
  void (*load)(const std::byte* from, DType dtype, int64_t n, float* to);
  // The extent of each group; false when a weight of the row is not finite (the extents then mean nothing).
  bool (*extents)(const float* w, int64_t groups, int64_t length, Extent* result);
  void (*round_integer)(const IntGrid& grid, const RtnRow& row);
  void (*round_float)(const FloatGrid& grid, const RtnRow& row);
};

// Those of the instruction set in use.
const RtnKernels& rtn_kernels();

const RtnKernels& rtn_kernels_generic();
#if defined(LPQ_X86)
const RtnKernels& rtn_kernels_avx2();
const RtnKernels& rtn_kernels_avx512();
#endif

}  // namespace lpq
