// Loops that all three kernel files compile for their own instruction set. Everything is static: a function shared by name
// would be merged by the linker, and the merged copy might use instructions the CPU lacks.
#pragma once
#include <cmath>

#include "cpu/linalg/kernels.h"
#include "lpq/half.h"

namespace lpq::linalg {
namespace {

template <class T, class Source, class Load>
[[maybe_unused]] void pack_loop(T* dst, const Source* src, int64_t step_i, int64_t step_p, int count, int width, int64_t kc,
                                T scale, Load load) {
  for (int64_t p = 0; p < kc; ++p) {
    T* row = dst + p * width;
    const Source* from = src + p * step_p;
    for (int i = 0; i < count; ++i) row[i] = load(from[i * step_i]) * scale;
    for (int i = count; i < width; ++i) row[i] = 0;
  }
}

[[maybe_unused]] void pack_scalar(float* dst, const PackSource& s, int count, int width, int64_t kc, float scale) {
  if (s.dtype == DType::f32)
    pack_loop(dst, static_cast<const float*>(s.data), s.step_i, s.step_p, count, width, kc, scale, [](float v) { return v; });
  else if (s.dtype == DType::f16)
    pack_loop(dst, static_cast<const uint16_t*>(s.data), s.step_i, s.step_p, count, width, kc, scale, f16_to_f32);
  else
    pack_loop(dst, static_cast<const uint16_t*>(s.data), s.step_i, s.step_p, count, width, kc, scale, bf16_to_f32);
}

[[maybe_unused]] void pack_scalar(double* dst, const PackSource& s, int count, int width, int64_t kc, double scale) {
  const auto* src = static_cast<const double*>(s.data);
  if (s.step_i == 1)
    pack_loop(dst, src, 1, s.step_p, count, width, kc, scale, [](double v) { return v; });
  else
    pack_loop(dst, src, s.step_i, 1, count, width, kc, scale, [](double v) { return v; });
}

[[maybe_unused]] void add_scaled(const float* tile, int64_t ldt, int rows, int cols, double weight, double* sink, int64_t lds) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < cols; ++j) sink[r * lds + j] += weight * static_cast<double>(tile[r * ldt + j]);
}

constexpr int kLanes = 16;

[[maybe_unused]] void solve_lower(const double* l, int64_t ldl, int n, double* x) {
  for (int i = 0; i < n; ++i) {
    double sum[kLanes];
    for (int v = 0; v < kLanes; ++v) sum[v] = x[i * kLanes + v];
    for (int p = 0; p < i; ++p) {
      const double factor = -l[i * ldl + p];
      for (int v = 0; v < kLanes; ++v) sum[v] = std::fma(factor, x[p * kLanes + v], sum[v]);
    }
    for (int v = 0; v < kLanes; ++v) x[i * kLanes + v] = sum[v] / l[i * ldl + i];
  }
}

[[maybe_unused]] void solve_lower_transposed(const double* l, int64_t ldl, int n, double* x) {
  for (int i = n - 1; i >= 0; --i) {
    double sum[kLanes];
    for (int v = 0; v < kLanes; ++v) sum[v] = x[i * kLanes + v];
    for (int p = n - 1; p > i; --p) {
      const double factor = -l[p * ldl + i];
      for (int v = 0; v < kLanes; ++v) sum[v] = std::fma(factor, x[p * kLanes + v], sum[v]);
    }
    for (int v = 0; v < kLanes; ++v) x[i * kLanes + v] = sum[v] / l[i * ldl + i];
  }
}

// Right-looking: after column j is scaled, every later row takes its rank-1 part off, which runs along rows.
[[maybe_unused]] int cholesky_small(double* a, int64_t lda, int n) {
  double column[64];
  for (int j = 0; j < n; ++j) {
    const double pivot = a[j * lda + j];
    if (!(pivot > 0) || pivot > 1.7976931348623157e308) return 1 + j;
    const double root = std::sqrt(pivot);
    a[j * lda + j] = root;
    for (int i = j + 1; i < n; ++i) column[i] = a[i * lda + j] = a[i * lda + j] / root;
    for (int i = j + 1; i < n; ++i) {
      double* row = a + i * lda;
      const double factor = -column[i];
      for (int q = j + 1; q <= i; ++q) row[q] = std::fma(factor, column[q], row[q]);
    }
  }
  return 0;
}

[[maybe_unused]] constexpr TriangularKernels kTriangular = {kLanes, solve_lower, solve_lower_transposed, cholesky_small};

}  // namespace
}  // namespace lpq::linalg
