// Products of fp32 accuracy on f16 tensor cores: each operand is two f16 planes, hi + lo, in units of powers of two.
//
// Row i of an operand is stored as x_ij 2^(times units[j] + e_i), e_i such that its largest entry lies in [2^14, 2^15);
// lo then holds what hi lacks down to 2^-25. So an entry is off by at most 2^-22 of itself or 2^-40 of its row's
// largest, whichever is more, and the product leaves out lo lo, another 2^-22. Tensor cores cut sums off instead of
// rounding them, one step of 2^-24 for 16 terms: a sum is handed back to fp32 adds every kDepth terms, which keeps that
// part at kDepth / 16 steps of 2^-24 = 2^-16 of the partial sums at the very worst, 2^-20 at random.
#pragma once
#include "cuda/gptq/problem.h"

namespace lpq::cuda::gptq {

constexpr int64_t kDepth = 4096;

// A matrix of rows of `ld` elements, f64 or f32 (narrow); with order, row i and column j are order[i] and order[j].
struct Source {
  const void* data;
  int narrow;
  int64_t ld;
  const int32_t* order = nullptr;
};
struct Units {
  const int32_t* exponents = nullptr;
  int times = 0;
};
enum class Filled { all, upper, lower };  // where a matrix is not zero

// exponents[i] = e_i of rows row0 + i, i < rows; 100 for a row of zeros.
inline void row_units(CudaExec& exec, Source x, int64_t row0, int64_t rows, int64_t columns, Units units,
                      int32_t* exponents) {
  exec.launch("lpq_gptq_row_units", Dim3(rows), Dim3(256), 0, x.data, x.narrow, x.ld, x.order, row0,
              static_cast<int>(columns), units.exponents, units.times, exponents);
}

// Rows row0 .. row0 + rows as planes [rows, columns]; exponents of the first of them.
inline void split_rows(CudaExec& exec, Source x, int64_t row0, int64_t rows, int64_t columns, Units units,
                       const int32_t* exponents, Planes out) {
  exec.launch("lpq_gptq_split_rows", Dim3(rows), Dim3(256), 0, x.data, x.narrow, x.ld, x.order, row0,
              static_cast<int>(columns), units.exponents, units.times, exponents, out.hi, out.lo);
}

// Planes of up to `rows` rows.
struct Room {
  Scratch memory;
  int64_t count;
  Room(CudaExec& exec, int64_t rows, int64_t columns, bool two = true)
      : memory(exec.scratch(static_cast<size_t>(rows * columns) * (two ? 4 : 2))), count(rows * columns), two_(two) {}
  Planes planes() const { return {memory.as<uint16_t>(), two_ ? memory.as<uint16_t>() + count : nullptr}; }

 private:
  bool two_;
};

// out [rows, n] = A X for A planes [rows, k] and X [k, n], split panel by panel in `panel` (room for kDepth rows of n).
inline void times_rows(CudaExec& exec, Planes a, int64_t rows, int64_t k, Source x, int64_t n, Units units,
                       const int32_t* exponents, Filled filled, const Room& panel, float* out) {
  const int64_t panels = (k + kDepth - 1) / kDepth;
  for (int64_t step = 0; step < panels; ++step) {
    // The panel that fills every column comes first and writes; the others add.
    const int64_t first = (filled == Filled::lower ? panels - 1 - step : step) * kDepth,
                  height = std::min(kDepth, k - first);
    split_rows(exec, x, first, height, n, units, exponents + first, panel.planes());
    const int64_t from = filled == Filled::upper ? first : 0,
                  to = filled == Filled::lower ? std::min(n, first + height) : n;
    Gemm product;
    product.ab = DType::f16;
    product.out = DType::f32;
    product.m = rows;
    product.n = to - from;
    product.k = height;
    product.lda = k;
    product.ldb = product.ldc = n;
    product.c = out + from;
    product.beta = step > 0;
    multiply(exec, product, a.at(first), panel.planes().at(from));
  }
}

// out [rows, k] = A U^T for A planes [rows, k] and the upper triangular U [k, k], likewise.
inline void times_transposed(CudaExec& exec, Planes a, int64_t rows, int64_t k, Source u, Units units,
                             const int32_t* exponents, const Room& panel, float* out) {
  for (int64_t first = 0; first < k; first += kDepth) {
    const int64_t height = std::min(kDepth, k - first);
    split_rows(exec, u, first, height, k, units, exponents + first, panel.planes());
    for (int64_t from = first; from < k; from += kDepth) {
      Gemm product;
      product.ab = DType::f16;
      product.out = DType::f32;
      product.m = rows;
      product.n = height;
      product.k = std::min(kDepth, k - from);
      product.lda = product.ldb = product.ldc = k;
      product.transpose_b = true;
      product.c = out + first;
      product.beta = from > first;
      multiply(exec, product, a.at(from), panel.planes().at(from));
    }
  }
}

// What a product's exponents leave: to (+)= weight in 2^-(units + rows).
inline void leave_units(CudaExec& exec, const float* in, int64_t rows, int64_t columns, Units units,
                        const int32_t* first, const int32_t* second, const int32_t* third, double weight, bool add,
                        void* to, int narrow, int64_t ld) {
  exec.launch("lpq_gptq_leave_units", Dim3(rows), Dim3(256), 0, in, static_cast<int>(columns), units.exponents,
              units.times, first, second, third, weight, add ? 1 : 0, to, narrow, ld);
}

}  // namespace lpq::cuda::gptq
