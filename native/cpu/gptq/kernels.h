// The solver's inner loops over one block of columns, for a range of rows. Compiled once per instruction set
// (kernels_*.cpp include kernels_body.h) and chosen by active_isa(); every element is computed by the same operations
// in the same order, so all give the same bytes.
#pragma once
#include <cstdint>

#include "cpu/quant/grid.h"

namespace lpq::gptq {

// A "level" is a decoded code (an integer, or a value of the float type); the weight it stands for is (level - zero) *
// scale. A negative scale mirrors the grid.
//
// Columns a block: errors inside it are propagated at once, beyond it by one GEMM (GPTQ, Frantar et al. 2023, section
// 3.3).
constexpr int kBlock = 128;

struct BlockArgs {
  const QuantType* type;
  int64_t k;             // columns in all = leading dimension of w, level, u
  int64_t first, last;   // columns of the block, in solving order
  const int32_t* group;  // [k] group of each column, in solving order
  const float* scale;    // [n, groups]
  const float* zero;     // [n, groups], or null
  int64_t groups;
  float* w;               // [n, k] weights as updated so far (solve) / gradient E*M (descend)
  float* level;           // [n, k] chosen levels
  float* delta;           // [n, kBlock] out: scaled errors (solve) / change of the weight (descend)
  const float* matrix;    // [k, k] U (solve) / M (descend), in solving order
  float* keep = nullptr;  // [n, k] 1 where a weight stays, 0 where it was pruned; sparse kernels only
  bool fixed = false;     // keep is given and stays as it is
};

struct Kernels {
  // GPTQ: level = nearest(w); err = (w - what) / U[j][j]; w[j+1..] -= err * U[j][j+1..]; delta = err.
  void (*solve)(const BlockArgs&, int64_t row_begin, int64_t row_end);
  // One coordinate-descent pass: each code to its best value given all others; `w` holds the gradient (What - T) M.
  void (*descend)(const BlockArgs&, int64_t row_begin, int64_t row_end);
  // What the changes of a block add to the gradient of the columns behind it, one by one: a sweep moves a few of a
  // hundred codes. Returns how many it moved.
  int64_t (*spread)(const BlockArgs&, int64_t row_begin, int64_t row_end);
  // out[i] = (nearest(w[i]) - zero) * scale - w[i], i < count.
  void (*residual)(const QuantType&, const float* w, float scale, float zero, float* out, int64_t count);
  // sum a[i] * b[i] in double over 8 interleaved partial sums, added in order.
  double (*dot)(const float* a, const float* b, int64_t count);
  // 2:4 (sparse_body.h): of every four columns two are chosen together with their levels; the others' level is the
  // zero.
  // prune: no rounding, `level` is the weight; solve: the walk above; descend: pairs may change in later sweeps.
  void (*prune)(const BlockArgs&, int64_t row_begin, int64_t row_end);
  void (*sparse_solve)(const BlockArgs&, int64_t row_begin, int64_t row_end);
  void (*sparse_descend)(const BlockArgs&, int64_t row_begin, int64_t row_end);
};

const Kernels& kernels();

}  // namespace lpq::gptq
