#include "cpu/linalg/gemm.h"

#include "cpu/linalg/blas.h"
#include "cpu/linalg/gemm_driver.h"

namespace lpq {
namespace linalg {
namespace {

// C = beta * C for every beta but 1; 0 writes zeros without reading.
template <class T>
void scale_rows(ThreadPool& pool, int64_t m, int64_t n, T beta, T* c, int64_t ldc) {
  if (beta == T(1)) return;
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(n, 1));
  pool.for_each(m, grain, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : c[i * ldc + j] * beta;
  });
}

template <class T>
void product_into(ThreadPool& pool, const Product<T>& product, T beta, T* c, int64_t ldc, Exec* progress = nullptr) {
  if (product.m <= 0 || product.n <= 0) return;
  if (product.k <= 0 || (beta != T(0) && beta != T(1))) {
    scale_rows(pool, product.m, product.n, beta, c, ldc);
    beta = 1;
  }
  const auto tile = product.kernel.tile;
  run_product(
      pool, product,
      [&](int, int64_t kc, const T* a, const T* b, int64_t i, int64_t j, int rows, int cols, bool first) {
        tile(kc, a, b, c + i * ldc + j, ldc, rows, cols, !first || beta != T(0));
      },
      progress);
}

// The strict upper triangle becomes the mirror of the lower one, in squares that fit the cache.
template <class T>
void mirror_lower(ThreadPool& pool, int64_t n, T* c, int64_t ldc) {
  constexpr int64_t side = 32;
  const int64_t blocks = (n + side - 1) / side;
  pool.parallel_for(blocks, std::max<int64_t>(1, 2048 / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end, int) {
    T turned[side][side];  // rows of c are far apart: squares are turned in a place of their own
    for (int64_t bi = begin; bi < end; ++bi)
      for (int64_t bj = 0; bj <= bi; ++bj) {
        const int64_t i0 = bi * side, j0 = bj * side, high = std::min(side, n - i0), wide = std::min(side, n - j0);
        for (int64_t i = 0; i < high; ++i)
          for (int64_t j = 0; j < wide; ++j) turned[j][i] = c[(i0 + i) * ldc + j0 + j];
        for (int64_t j = 0; j < wide; ++j)
          for (int64_t i = bi == bj ? j + 1 : 0; i < high; ++i) c[(j0 + j) * ldc + i0 + i] = turned[j][i];
      }
  });
}

template <class T>
void gemm(ThreadPool& pool, Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (blas_takes(m, n, k)) return blas_gemm(pool, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  product_into<T>(pool, {m, n, k, source_of(a, ta, lda, false), source_of(b, tb, ldb, true), alpha}, beta, c, ldc);
}

template <class T>
void syrk(ThreadPool& pool, Trans ta, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, T beta, T* c, int64_t ldc,
          bool mirror) {
  const PackSource source = source_of(a, ta, lda, false);
  product_into<T>(pool, {n, n, k, source, source, alpha, Region::lower}, beta, c, ldc);
  if (mirror) mirror_lower(pool, n, c, ldc);
}

}  // namespace
}  // namespace linalg

void gemm_f32(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, float alpha, const float* A,
              int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc, Products products) {
  using namespace linalg;
  if (products == Products::bf16)
    return product_into<float>(
        pool, {m, n, k, source_of(A, a, lda, false), source_of(B, b, ldb, true), alpha, Region::all, bf16_kernels()},
        beta, C, ldc);
  linalg::gemm<float>(pool, a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

void gemm_f64(ThreadPool& pool, Trans a, Trans b, int64_t m, int64_t n, int64_t k, double alpha, const double* A,
              int64_t lda, const double* B, int64_t ldb, double beta, double* C, int64_t ldc) {
  linalg::gemm<double>(pool, a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

void syrk_f32(ThreadPool& pool, Trans a, int64_t n, int64_t k, float alpha, const float* A, int64_t lda, float beta,
              float* C, int64_t ldc) {
  linalg::syrk<float>(pool, a, n, k, alpha, A, lda, beta, C, ldc, true);
}

void syrk_f64(ThreadPool& pool, Trans a, int64_t n, int64_t k, double alpha, const double* A, int64_t lda, double beta,
              double* C, int64_t ldc) {
  linalg::syrk<double>(pool, a, n, k, alpha, A, lda, beta, C, ldc, true);
}

void syrk_lower_f64(ThreadPool& pool, int64_t n, int64_t k, double alpha, const double* A, int64_t lda, double beta,
                    double* C, int64_t ldc) {
  linalg::syrk<double>(pool, Trans::no, n, k, alpha, A, lda, beta, C, ldc, false);
}

void gemm_weight(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* x, int64_t ldx, const void* weight,
                 DType weight_dtype, int64_t ldw, float beta, float* y, int64_t ldy, Products products,
                 Exec* progress) {
  if (products == Products::f32 && weight_dtype == DType::f32 && linalg::blas_takes(m, n, k))
    return linalg::blas_gemm(pool, Trans::no, Trans::yes, m, n, k, 1.0f, x, ldx, static_cast<const float*>(weight), ldw,
                             beta, y, ldy);
  const linalg::PackSource rows{x, DType::f32, ldx, 1}, columns{weight, weight_dtype, ldw, 1};
  linalg::product_into<float>(pool, {m, n, k, rows, columns, 1.0f, linalg::Region::all, linalg::kernels_of(products)},
                              beta, y, ldy, progress);
}

void gemm_panels(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* x,
                 const std::function<void(float* to, int64_t j, int64_t p0, int64_t kc)>& fill, float beta, float* y,
                 Products products, Exec* progress) {
  const linalg::PackSource rows{x, DType::f32, k, 1};
  linalg::product_into<float>(pool, {m, n, k, rows, {}, 1.0f, linalg::Region::all, linalg::kernels_of(products), &fill},
                              beta, y, n, progress);
}

void gram_f64(ThreadPool& pool, int64_t rows, int64_t n, const float* a, const float* b, int64_t ld, double weight,
              double* C, Products products, Exec* progress) {
  using namespace linalg;
  const bool symmetric = a == b;
  const Kernels<float>& kernel = kernels_of(products);
  const AddScaledFn add_scaled = kernel_set().add_scaled;
  const Product<float> product{
      n,     n, rows, {a, DType::f32, 1, ld}, {b, DType::f32, 1, ld}, 1.0f, symmetric ? Region::lower : Region::all,
      kernel};
  run_product(
      pool, product,
      [&](int, int64_t kc, const float* pa, const float* pb, int64_t i, int64_t j, int tile_rows, int cols, bool) {
        alignas(64) float tile[14 * 32];
        for (int r = 0; r < tile_rows; ++r)
          for (int q = 0; q < cols; q += 8) __builtin_prefetch(C + (i + r) * n + j + q, 1);
        kernel.tile(kc, pa, pb, tile, kernel.nr, tile_rows, cols, false);
        add_scaled(tile, kernel.nr, tile_rows, cols, weight, C + i * n + j, n);
      },
      progress);
  if (symmetric) mirror_lower(pool, n, C, n);
}

}  // namespace lpq
