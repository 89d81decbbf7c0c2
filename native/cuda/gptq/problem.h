// What the solver's operations share.
#pragma once
#include <algorithm>
#include <string>

#include "cuda/exec.h"
#include "cuda/gptq/block.h"
#include "cuda/quant/grid.cuh"
#include "ops/gptq.h"

namespace lpq::cuda::gptq {

struct Problem {
  int64_t n, k, groups;
  const float *t, *matrix, *scale, *zero;
  const int32_t* group;  // a copy whose entries are all usable
  Scratch checked_group;
};

// Groups outside [0,G) fail the next wait.
inline Problem read_problem(CudaExec& exec, const ops::GptqProblem& of) {
  require(of.n < (int64_t{1} << 24) && of.k < (int64_t{1} << 20), "T has too many rows or columns");
  Problem p{of.n,
            of.k,
            of.groups,
            of.t.data<float>(),
            of.matrix.data<float>(),
            of.scale.data<float>(),
            of.zero.data<float>(),
            nullptr,
            exec.scratch(static_cast<size_t>(of.k + 4) * 4)};
  p.group = p.checked_group.as<int32_t>();
  exec.launch("lpq_gptq_check_groups", Dim3((p.k + 255) / 256), Dim3(256), 0,
              static_cast<const int32_t*>(of.group.data<int32_t>()), static_cast<int>(p.k), static_cast<int>(p.groups),
              p.checked_group.as<int32_t>(),
              exec.fault("LPQ_NATIVE_ARGUMENT", "group holds an index outside the scales"));
  return p;
}

// Blocks for a loop over `count` elements.
inline int64_t blocks_for(CudaExec& exec, int64_t count, int64_t threads) {
  return std::max<int64_t>(
      1, std::min<int64_t>((count + threads - 1) / threads, int64_t{exec.device().multiprocessors} * 16));
}

// A 16-bit matrix of one or two planes; lo null: one.
struct Planes {
  uint16_t *hi = nullptr, *lo = nullptr;
  Planes at(int64_t offset) const { return {hi + offset, lo ? lo + offset : nullptr}; }
};

// C += sign * A B in fp32: all products of the planes but lo times lo, which is below what C can hold. Devices that
// share a matrix by rows find what one finds.
inline void multiply(CudaExec& exec, Gemm shape, Planes a, Planes b) {
  shape.rows_alone = true;
  shape.a = a.hi;
  shape.b = b.hi;
  exec.gemm(shape);
  shape.beta = 1;
  if (a.lo) {
    shape.a = a.lo;
    exec.gemm(shape);
  }
  if (b.lo) {
    shape.a = a.hi;
    shape.b = b.lo;
    exec.gemm(shape);
  }
}

// Column exponents [K+1] of a metric and row exponents [N] of a target: the scaled units of block.h.
struct Scaling {
  Scratch columns, rows;
  Scaling(CudaExec& exec, const Problem& p)
      : columns(exec.scratch(static_cast<size_t>(p.k + 1) * 4)), rows(exec.scratch(static_cast<size_t>(p.n) * 4)) {
    exec.launch("lpq_gptq_column_exponent", Dim3(1), Dim3(1024), 0, p.matrix, static_cast<int>(p.k),
                columns.as<int32_t>());
    exec.launch("lpq_gptq_row_exponent", Dim3(p.n), Dim3(256), 0, p.t, static_cast<int>(p.k), rows.as<int32_t>());
  }
};

// The metric M f32 [k,k] in scaled units (block.h), its rows and columns as members [size] says; null: in order.
inline void scaled_metric(CudaExec& exec, const float* m, int64_t k, const int32_t* exponents, const int32_t* members,
                          int64_t size, Planes out) {
  // Rows in order are read once anyway.
  const int staged = members && k * 4 <= exec.device().shared_per_block;
  exec.launch("lpq_gptq_scaled_metric", Dim3(size), Dim3(512), staged ? static_cast<unsigned>(k * 4) : 0u, m,
              static_cast<int>(k), exponents, members, static_cast<int>(size), out.hi, out.lo, staged);
}

}  // namespace lpq::cuda::gptq
