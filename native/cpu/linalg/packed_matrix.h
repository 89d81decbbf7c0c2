// Products with one matrix that is packed once, for loops whose operands stay in a core's caches.
#pragma once
#include <vector>

#include "cpu/linalg/gemm.h"

namespace lpq::linalg {

// B f32 [k,n], rows ld apart, k <= 512. Arithmetic as gemm_f32. multiply() runs on the calling thread.
class PackedMatrix {
 public:
  PackedMatrix(const float* b, int64_t k, int64_t n, int64_t ld, Products products);

  // Rows that one call takes at most.
  int rows() const;
  // Floats that a call works in.
  size_t scratch() const;
  // c[m,n] = a[m,k] B, m <= rows().
  void multiply(const float* a, int64_t lda, int m, float* c, int64_t ldc, float* scratch) const;

 private:
  struct alignas(64) Line {
    float values[16];
  };
  int64_t k_, n_, stride_;  // stride_: lines from one panel to the next
  Products products_;
  std::vector<Line> panels_;
};

}  // namespace lpq::linalg
