// Arguments of the block kernels (solve.cu), shared with the host.
#pragma once
#include <cstdint>

#include "cuda/quant/grid.cuh"

#ifndef __CUDACC__
struct uint4;  // CUDA's own word of 16 bytes
#endif

namespace lpq::cuda {

constexpr int kBlockColumns = 128;  // solved by one kernel
constexpr int kOuterColumns = 512;  // brought up to date by one product
// A diagonal block as the walk reads it: 56 tiles of 16 x 8 behind the diagonal as tensor core operands (two planes),
// the eight 16 x 16 blocks on the diagonal, 1 / diagonal and 2^(column exponent - their maximum), in words of 16 bytes.
constexpr int kBlockTiles = 56;
constexpr int kBlockWords = kBlockTiles * 32 + (kBlockColumns * 16 + 2 * kBlockColumns) / 4;

// Products of the sweeps run on f16 operands in scaled units: column j of the metric is divided by 2^a[j] with a[j] =
// round(log2 sqrt(M_jj)) on both sides and multiplied by 2^kMetricShift, so |M'_ij| <= 2^(kMetricShift + 1); errors of
// row n and column j are multiplied by 2^(a[j] - max a + row[n]). All factors are powers of two: the scaling itself
// rounds nothing.
constexpr int kMetricShift = 8;
constexpr int kRowTop = 12;  // the largest |target| of a row lies in [2^(kRowTop-1), 2^kRowTop) after scaling

constexpr int kBlockRowBytes = 16 * 4 + 4 * 4 + 2 * 24 * 2;  // of a row on its way between walk and products (solve.cu)

struct BlockArgs {
  GridSpec grid;
  int n, k, first, width;  // columns first .. first + width of k
  int full;                // 128 of them, whose rows lie on 16 bytes
  float* x;                // [n, ldx] from column `first` on: targets as updated so far / scaled gradient
  int ldx;
  const int32_t* group;           // [k]
  const float *scale_t, *zero_t;  // [groups, n]
  const float* t;                 // [n, k] (descend)
  float* level;                   // [n, k]
  const uint4* blocks;            // [ceil(k / 128)][kBlockWords]
  uint16_t *hi, *lo;  // [n, k]: scaled errors as bf16 (solve) / (What - T) as f16, scaled (descend); lo may be null
  uint16_t *delta_hi, *delta_lo;  // [n, ldd] from column `first` on: changes of What as f16, scaled (descend)
  int ldd;
  const int32_t* row_exponent;  // [n] (descend)
  unsigned long long* moved;    // counts codes that changed (descend)
};

}  // namespace lpq::cuda
