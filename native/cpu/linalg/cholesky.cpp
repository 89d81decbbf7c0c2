#include "cpu/linalg/cholesky.h"

#include <algorithm>
#include <vector>

#include "cpu/linalg/kernels.h"

namespace lpq {

void syrk_lower_f64(ThreadPool& pool, int64_t n, int64_t k, double alpha, const double* A, int64_t lda, double beta,
                    double* C,
                    int64_t ldc);  // gemm.cpp

using linalg::kernel_set;

namespace {

constexpr int64_t kBase = 64;  // below this, straight loops; part of the arithmetic
constexpr int kMostLanes = 16;

int64_t split(int64_t n) { return (n / 2 + kBase - 1) / kBase * kBase; }  // 0 < split(n) < n for n > kBase

// n <= kBase: right-hand sides are copied a few at a time into lanes [n][lanes], solved, and copied back.
// Right-hand side r is the vector at B + r*step_r with step_i elements between its entries.
void solve_base(ThreadPool& pool, bool transposed, int64_t n, const double* L, int64_t ldl, double* B, int64_t count,
                int64_t step_r, int64_t step_i) {
  const auto& kernel = kernel_set().triangular;
  const int lanes = kernel.lanes;
  pool.parallel_for(count, std::max<int64_t>(lanes, 128), [&](int64_t begin, int64_t end, int) {
    alignas(64) double x[kBase * kMostLanes];
    for (int64_t r0 = begin; r0 < end; r0 += lanes) {
      const int64_t here = std::min<int64_t>(lanes, end - r0);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t v = 0; v < lanes; ++v) x[i * lanes + v] = v < here ? B[(r0 + v) * step_r + i * step_i] : 0.0;
      (transposed ? kernel.solve_lower_transposed : kernel.solve_lower)(L, ldl, static_cast<int>(n), x);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t v = 0; v < here; ++v) B[(r0 + v) * step_r + i * step_i] = x[i * lanes + v];
    }
  });
}

int64_t cholesky_lower(ThreadPool& pool, double* A, int64_t n, int64_t lda) {
  if (n <= kBase) {
    if (pool.aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
    return kernel_set().triangular.cholesky(A, lda, static_cast<int>(n));
  }
  const int64_t h = split(n);
  if (const int64_t info = cholesky_lower(pool, A, h, lda)) return info;
  double *below = A + h * lda, *rest = below + h;
  trsm_lower_f64(pool, Side::right, Trans::yes, n - h, h, A, lda, below, lda);
  syrk_lower_f64(pool, n - h, h, -1.0, below, lda, 1.0, rest, lda);
  const int64_t info = cholesky_lower(pool, rest, n - h, lda);
  return info ? info + h : 0;
}

// B[m,n] = -B L for a lower triangular L[n,n].
void multiply_negated(ThreadPool& pool, int64_t m, int64_t n, const double* L, int64_t ldl, double* B, int64_t ldb) {
  if (n <= kBase) {
    double lower[kBase * kBase];
    for (int64_t p = 0; p < n; ++p)
      for (int64_t j = 0; j < n; ++j) lower[p * n + j] = j <= p ? L[p * ldl + j] : 0.0;
    std::vector<double> product(static_cast<size_t>(m * n));
    gemm_f64(pool, Trans::no, Trans::no, m, n, n, -1.0, B, ldb, lower, n, 0.0, product.data(), n);
    for (int64_t i = 0; i < m; ++i) std::copy(product.begin() + i * n, product.begin() + (i + 1) * n, B + i * ldb);
    return;
  }
  const int64_t h = split(n);
  multiply_negated(pool, m, h, L, ldl, B, ldb);
  gemm_f64(pool, Trans::no, Trans::no, m, h, n - h, -1.0, B + h, ldb, L + h * ldl, ldl, 1.0, B, ldb);
  multiply_negated(pool, m, n - h, L + h * ldl + h, ldl, B + h, ldb);
}

}  // namespace

int64_t cholesky_f64(ThreadPool& pool, double* A, int64_t n, int64_t lda) {
  const int64_t info = n > 0 ? cholesky_lower(pool, A, n, lda) : 0;
  pool.for_each(n, 64, [&](int64_t i) { std::fill(A + i * lda + i + 1, A + i * lda + n, 0.0); });
  return info;
}

void trtri_lower_f64(ThreadPool& pool, double* L, int64_t n, int64_t lda) {
  if (n <= 0) return;
  if (n <= kBase) {
    if (pool.aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
    double inverse[kBase * kBase];
    std::fill(inverse, inverse + n * n, 0.0);
    for (int64_t i = 0; i < n; ++i) inverse[i * n + i] = 1.0;
    const auto& kernel = kernel_set().triangular;
    for (int64_t j0 = 0; j0 < n; j0 += kernel.lanes) {
      const int64_t here = std::min<int64_t>(kernel.lanes, n - j0);
      alignas(64) double x[kBase * kMostLanes];
      for (int64_t i = 0; i < n; ++i)
        for (int64_t v = 0; v < kernel.lanes; ++v) x[i * kernel.lanes + v] = v < here ? inverse[i * n + j0 + v] : 0.0;
      kernel.solve_lower(L, lda, static_cast<int>(n), x);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t v = 0; v < here; ++v) inverse[i * n + j0 + v] = x[i * kernel.lanes + v];
    }
    for (int64_t i = 0; i < n; ++i) std::copy(inverse + i * n, inverse + i * n + i + 1, L + i * lda);
    return;
  }
  // inv [L11 0; L21 L22] = [inv L11, 0; -inv(L22) L21 inv(L11), inv L22]
  const int64_t h = split(n);
  double *below = L + h * lda, *rest = below + h;
  trsm_lower_f64(pool, Side::left, Trans::no, n - h, h, rest, lda, below, lda);
  trtri_lower_f64(pool, L, h, lda);
  multiply_negated(pool, n - h, h, L, lda, below, lda);
  trtri_lower_f64(pool, rest, n - h, lda);
}

void trsm_lower_f64(ThreadPool& pool, Side side, Trans trans, int64_t m, int64_t n, const double* L, int64_t ldl,
                    double* B, int64_t ldb) {
  if (m <= 0 || n <= 0) return;
  const bool left = side == Side::left, turned = trans == Trans::yes;
  const int64_t size = left ? m : n;
  if (size <= kBase) {
    // X op(L) = B is op(L)^T X^T = B^T: rows of B are the right-hand sides, and the transposition is turned round.
    if (left) solve_base(pool, turned, m, L, ldl, B, n, 1, ldb);
    else solve_base(pool, !turned, n, L, ldl, B, m, ldb, 1);
    return;
  }
  const int64_t h = split(size);
  const double *l21 = L + h * ldl, *l22 = l21 + h;
  if (left) {
    double* b2 = B + h * ldb;
    if (!turned) {  // X1 = L11^-1 B1, X2 = L22^-1 (B2 - L21 X1)
      trsm_lower_f64(pool, side, trans, h, n, L, ldl, B, ldb);
      gemm_f64(pool, Trans::no, Trans::no, m - h, n, h, -1.0, l21, ldl, B, ldb, 1.0, b2, ldb);
      trsm_lower_f64(pool, side, trans, m - h, n, l22, ldl, b2, ldb);
    } else {  // X2 = L22^-T B2, X1 = L11^-T (B1 - L21^T X2)
      trsm_lower_f64(pool, side, trans, m - h, n, l22, ldl, b2, ldb);
      gemm_f64(pool, Trans::yes, Trans::no, h, n, m - h, -1.0, l21, ldl, b2, ldb, 1.0, B, ldb);
      trsm_lower_f64(pool, side, trans, h, n, L, ldl, B, ldb);
    }
    return;
  }
  double* b2 = B + h;
  if (turned) {  // X L^T = B: X1 = B1 L11^-T, X2 = (B2 - X1 L21^T) L22^-T
    trsm_lower_f64(pool, side, trans, m, h, L, ldl, B, ldb);
    gemm_f64(pool, Trans::no, Trans::yes, m, n - h, h, -1.0, B, ldb, l21, ldl, 1.0, b2, ldb);
    trsm_lower_f64(pool, side, trans, m, n - h, l22, ldl, b2, ldb);
  } else {  // X L = B: X2 = B2 L22^-1, X1 = (B1 - X2 L21) L11^-1
    trsm_lower_f64(pool, side, trans, m, n - h, l22, ldl, b2, ldb);
    gemm_f64(pool, Trans::no, Trans::no, m, h, n - h, -1.0, b2, ldb, l21, ldl, 1.0, B, ldb);
    trsm_lower_f64(pool, side, trans, m, h, L, ldl, B, ldb);
  }
}

}  // namespace lpq
