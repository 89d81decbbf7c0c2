// Products with one matrix that is packed once, for loops whose operands stay in a core's caches.
#pragma once
#include <vector>

#include "cpu/linalg/gemm.h"

namespace lpq::linalg {

// B f32 [k,n], rows ld apart, k <= 512; of an upper one what lies below the diagonal is 0 and is not multiplied.
// Arithmetic as gemm_f32. multiply() runs on the calling thread.
class PackedMatrix {
 public:
  enum class Shape { full, upper };
  PackedMatrix(const float* b, int64_t k, int64_t n, int64_t ld, Products products, Shape shape = Shape::full);

  // Rows that one call takes at most.
  int rows() const { return rows(products_); }
  static int rows(Products products);
  // Floats that a call works in.
  size_t scratch() const;
  // c[m,n] = a[m,k] B, m <= rows(); with `add`, it is added to c.
  void multiply(const float* a, int64_t lda, int m, float* c, int64_t ldc, float* scratch, bool add = false) const;

 private:
  struct alignas(64) Line {
    float values[16];
  };
  int64_t k_, n_, stride_;  // stride_: lines from one panel to the next
  Products products_;
  Shape shape_;
  std::vector<Line> panels_;
};

}  // namespace lpq::linalg
