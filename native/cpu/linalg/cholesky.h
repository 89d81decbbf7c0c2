// Factorisations and triangular solves in f64, recursive, so that nearly all their work is matrix products (gemm.h,
// whose rules on threads, abort and byte-identical results hold here too). Row-major; L is lower triangular, its strict
// upper part is never read.
#pragma once
#include <cstdint>

#include "cpu/linalg/gemm.h"

namespace lpq {

// A[n,n] becomes its lower Cholesky factor L, A = L L^T; only the lower triangle of A is read, the strict upper part is
// set to 0. Returns 0, or 1 + the first column whose pivot is not a positive finite number; A then holds no factor.
int64_t cholesky_f64(ThreadPool& pool, double* A, int64_t n, int64_t lda);
inline int64_t cholesky_f64(ThreadPool& pool, double* A, int64_t n) { return cholesky_f64(pool, A, n, n); }

// A lower triangular L[n,n] with a non-zero diagonal becomes its inverse, lower triangular too; the strict upper part
// is left alone.
void trtri_lower_f64(ThreadPool& pool, double* L, int64_t n, int64_t lda);
inline void trtri_lower_f64(ThreadPool& pool, double* L, int64_t n) { trtri_lower_f64(pool, L, n, n); }

enum class Side { left, right };
// In place. Side::left solves op(L) X = B for B[m,n], L[m,m]; Side::right solves X op(L) = B, L[n,n].
// op is the identity or, with Trans::yes, the transpose.
void trsm_lower_f64(ThreadPool& pool, Side side, Trans trans, int64_t m, int64_t n, const double* L, int64_t ldl,
                    double* B, int64_t ldb);

}  // namespace lpq
