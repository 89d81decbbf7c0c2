// An installed OpenBLAS, used for large products only when the environment says LPQ_BLAS=openblas. Its results differ
// from ours in the last bits and may differ between machines; reports must say that it was used.
#pragma once
#include <cstdint>

#include "cpu/linalg/gemm.h"

namespace lpq::linalg {

// True when LPQ_BLAS=openblas and the product is large enough to be worth it. Throws Failure("LPQ_NATIVE_BLAS") when
// LPQ_BLAS asks for something that is not there.
bool blas_takes(int64_t m, int64_t n, int64_t k);

// C = alpha * op(A) op(B) + beta * C as gemm.h, by OpenBLAS, with pool.size() threads of its own. Done in slabs of
// rows, so that abort is heard between them.
void blas_gemm(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, float alpha, const float* A,
               int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc);
void blas_gemm(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, double alpha, const double* A,
               int64_t lda, const double* B, int64_t ldb, double beta, double* C, int64_t ldc);

}  // namespace lpq::linalg
