// The inner loops of round-to-nearest, compiled once an instruction set. All variants give the same bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"

namespace lpq {

// Sums of one row, by lane: element i of a group adds to lane i mod 16, so that the order of additions is the same
// everywhere.
struct alignas(64) RtnSums {
  static constexpr int kLanes = 16;
  double error[kLanes] = {};  // of (w - what the stored code, zero and scale decode to)^2
  double norm[kLanes] = {};   // of w^2
};

// One group: `codes` are byte codes; stored and global are what a reader multiplies by.
struct RtnGroup {
  const float* w;
  int64_t n;
  ScaleChoice choice;
  float global;
  uint8_t* codes;
  RtnSums* sums;
};

struct RtnKernels {
  // n weights, f32, f16 or bf16 at any byte address, as f32.
  void (*load)(const std::byte* from, DType dtype, int64_t n, float* to);
  // Whether all n weights are finite, and their extent.
  bool (*extent)(const float* w, int64_t n, Extent* extent);
  void (*round_integer)(const IntGrid& grid, const RtnGroup& group);
  void (*round_float)(const FloatGrid& grid, const RtnGroup& group);
};

const RtnKernels& rtn_kernels_generic();
#if defined(LPQ_X86)
const RtnKernels& rtn_kernels_avx2();
const RtnKernels& rtn_kernels_avx512();
#endif

}  // namespace lpq
