// Around the products of second moments: f64 sums, the mirror, the check of what came out.
#include "cuda/types.cuh"

using namespace lpq;

// sum [rows, n] (rows apart by ld) += part, dense.
extern "C" __global__ void lpq_add_to_f64(const float* part, double* sum, index_t rows, index_t n, index_t ld,
                                          double weight) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * n; i += step) {
    double* to = sum + i / n * ld + i % n;
    *to = fma(weight, static_cast<double>(part[i]), *to);
  }
}

// The upper triangle becomes the transpose of the lower one; blocks of 32 x 32, blockDim (32, 8).
#define LPQ_MIRROR(type, name)                                                              \
  extern "C" __global__ void lpq_mirror_##name(type* h, int n) {                            \
    __shared__ type tile[32][33];                                                           \
    if (blockIdx.x > blockIdx.y) return;                                                    \
    const int row = blockIdx.y * 32, column = blockIdx.x * 32;                              \
    for (int i = threadIdx.y; i < 32; i += 8)                                               \
      if (row + i < n && column + threadIdx.x < n)                                          \
        tile[i][threadIdx.x] = h[static_cast<index_t>(row + i) * n + column + threadIdx.x]; \
    __syncthreads();                                                                        \
    for (int i = threadIdx.y; i < 32; i += 8) {                                             \
      const int to_row = column + i, to_column = row + threadIdx.x;                         \
      if (to_row < n && to_column < n && to_column > to_row)                                \
        h[static_cast<index_t>(to_row) * n + to_column] = tile[threadIdx.x][i];             \
    }                                                                                       \
  }
LPQ_MIRROR(float, f32)
LPQ_MIRROR(double, f64)

// c = (c - h) * scale, of h the lower triangle; blocks of 32 x 32, blockDim (32, 8).
#define LPQ_DRIFT(type, name)                                                                         \
  extern "C" __global__ void lpq_cross_drift_##name(const type* h, type* c, int n, double scale) {    \
    __shared__ type tile[32][33];                                                                     \
    const int row = blockIdx.y * 32, column = blockIdx.x * 32;                                        \
    const bool upper = column > row;                                                                  \
    const int from_row = upper ? column : row, from_column = upper ? row : column;                    \
    for (int i = threadIdx.y; i < 32; i += 8)                                                         \
      if (from_row + i < n && from_column + static_cast<int>(threadIdx.x) < n)                        \
        tile[i][threadIdx.x] = h[static_cast<index_t>(from_row + i) * n + from_column + threadIdx.x]; \
    __syncthreads();                                                                                  \
    for (int i = threadIdx.y; i < 32; i += 8) {                                                       \
      const int j = threadIdx.x;                                                                      \
      if (row + i >= n || column + j >= n) continue;                                                  \
      const type sum = upper || (column == row && j > i) ? tile[j][i] : tile[i][j];                   \
      type* to = c + static_cast<index_t>(row + i) * n + column + j;                                  \
      *to = (*to - sum) * static_cast<type>(scale);                                                   \
    }                                                                                                 \
  }
LPQ_DRIFT(float, f32)
LPQ_DRIFT(double, f64)

// fault = 1 when an element of the diagonal is not finite.
#define LPQ_DIAGONAL(type, name)                                                                     \
  extern "C" __global__ void lpq_finite_diagonal_##name(const type* h, index_t n, unsigned* fault) { \
    const index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;                   \
    if (i < n && !isfinite(h[i * n + i])) *fault = 1;                                                \
  }
LPQ_DIAGONAL(float, f32)
LPQ_DIAGONAL(double, f64)

#define LPQ_READ_DIAGONAL(type, name)                                                   \
  extern "C" __global__ void lpq_diagonal_##name(const type* h, double* d, index_t n) { \
    const index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;      \
    if (i < n) d[i] = static_cast<double>(h[i * n + i]);                                \
  }
LPQ_READ_DIAGONAL(float, f32)
LPQ_READ_DIAGONAL(double, f64)

// The strict upper triangle becomes zero.
extern "C" __global__ void lpq_clear_upper_f64(double* a, index_t n) {
  const index_t row = blockIdx.x;
  for (index_t column = row + 1 + threadIdx.x; column < n; column += blockDim.x) a[row * n + column] = 0;
}
