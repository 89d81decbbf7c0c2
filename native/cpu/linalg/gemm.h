// Matrix products. Row-major; C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C.
//
// Arithmetic, the same for every instruction set and number of threads: the k products are cut into blocks (512 for
// f32, 256 for f64); a block is one chain of fma from 0 in ascending k; block sums are added to the start value (0, or
// beta * C) in ascending order. alpha multiplies the elements of A (exact for +-1). With beta = 0, C is never read.
//
// Threads: call from the thread that drives the pool, never inside a parallel_for body. Work packs into scratch of a
// few MB that the calling thread keeps. Throws Failure("LPQ_ABORTED") within milliseconds of ThreadPool::abort(); C is
// then partly written. A, B may overlap each other, never C.
#pragma once
#include <cstdint>
#include <functional>

#include "lpq/exec.h"

namespace lpq {

enum class Trans { no, yes };

// bf16: elements of both operands are rounded to bf16 first, to the nearest, ties to even. A chain takes the second k
// of each pair before the first, and what lies below the least normal number is 0: the arithmetic of VDPBF16PS, which
// computes two k at once where the CPU has it; chains of fma give the same bytes everywhere else.
enum class Products { f32, bf16 };
inline Products products_of(bool bf16) { return bf16 ? Products::bf16 : Products::f32; }

// lda, ldb, ldc: elements between rows as stored. A is stored [m,k] (Trans::no) or [k,m] (Trans::yes); B [k,n] or
// [n,k].
// Products in bf16 take alpha = 1.
void gemm_f32(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, float alpha, const float* A,
              int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc,
              Products products = Products::f32);
void gemm_f64(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, double alpha, const double* A,
              int64_t lda, const double* B, int64_t ldb, double beta, double* C, int64_t ldc);

// C[n,n] = alpha * op(A) op(A)^T + beta * C, op(A) is [n,k] (A stored [n,k], or [k,n] with Trans::yes). Only the lower
// triangle of C is read; all of C is written, symmetric to the bit. Half the work of gemm.
void syrk_f32(ThreadPool& pool, Trans a, int64_t n, int64_t k, float alpha, const float* A, int64_t lda, float beta,
              float* C, int64_t ldc);
void syrk_f64(ThreadPool& pool, Trans a, int64_t n, int64_t k, double alpha, const double* A, int64_t lda, double beta,
              double* C, int64_t ldc);

// y[m,n] = x[m,k] W[n,k]^T, added to the start value beta * y (beta 0 or 1). W is f32, f16 or bf16 and is converted
// while it is packed. Arithmetic as gemm_f32.
void gemm_weight(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const void* weight,
                 DType weight_dtype, int64_t ldw, float beta, float* y, int64_t ldy, Products products = Products::f32,
                 Exec* progress = nullptr);

// y[m,n] = x[m,k] W[n,k]^T likewise, of which `fill` makes panels for the kernels (linalg/kernels.h).
void gemm_panels(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* x,
                 const std::function<void(float* to, int64_t j, int64_t p0, int64_t kc)>& fill, float beta, float* y,
                 Products products, Exec* progress = nullptr);

// C[n,n] (f64) += weight * a^T b for a, b f32 [rows,n] stored with ld elements between rows: products in one fp32 chain
// a block of 512 rows, blocks added to C in f64. When a == b only one triangle is computed and mirrored. progress, when
// given, counts elements of C times k blocks.
void gram_f64(ThreadPool& pool, int64_t rows, int64_t n, const float* a, const float* b, int64_t ld, double weight,
              double* C, Products products = Products::f32, Exec* progress = nullptr);

}  // namespace lpq
