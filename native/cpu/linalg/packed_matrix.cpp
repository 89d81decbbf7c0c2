#include "cpu/linalg/packed_matrix.h"

#include <algorithm>

#include "cpu/linalg/gemm_driver.h"

namespace lpq::linalg {

PackedMatrix::PackedMatrix(const float* b, int64_t k, int64_t n, int64_t ld, Products products, Shape shape)
    : k_(k), n_(n), products_(products), shape_(shape) {
  const Kernels<float>& kernel = kernels_of(products);
  stride_ = (kernel.depth(k) * kernel.nr + kPanelPad + 15) / 16;
  panels_.resize(static_cast<size_t>((n + kernel.nr - 1) / kernel.nr * stride_));
  for (int64_t j = 0; j < n; j += kernel.nr)
    kernel.pack(panels_[static_cast<size_t>(j / kernel.nr * stride_)].values, {b + j, DType::f32, 1, ld},
                static_cast<int>(std::min<int64_t>(kernel.nr, n - j)), kernel.nr, k, 1.0f);
}

int PackedMatrix::rows(Products products) { return kernels_of(products).mr; }

size_t PackedMatrix::scratch() const {
  const Kernels<float>& kernel = kernels_of(products_);
  return static_cast<size_t>(kernel.depth(k_) * kernel.mr + kPanelPad);
}

void PackedMatrix::multiply(const float* a, int64_t lda, int m, float* c, int64_t ldc, float* scratch, bool add) const {
  const Kernels<float>& kernel = kernels_of(products_);
  kernel.pack(scratch, {a, DType::f32, lda, 1}, m, kernel.mr, k_, 1.0f);
  for (int64_t j = 0; j < n_; j += kernel.nr) {
    const int64_t depth = shape_ == Shape::upper ? std::min(k_, j + kernel.nr) : k_;
    kernel.tile(depth, scratch, panels_[static_cast<size_t>(j / kernel.nr * stride_)].values, c + j, ldc, m,
                static_cast<int>(std::min<int64_t>(kernel.nr, n_ - j)), add);
  }
}

}  // namespace lpq::linalg
