// Elements moved, not computed with: columns out of a fused projection, columns beside one another, a matrix turned
// over. By the element's size.
#include "cuda/types.cuh"

using namespace lpq;

namespace {

constexpr int kTile = 32;

template <class T>
__device__ void slice(const T* x, T* y, index_t rows, index_t columns, index_t width, index_t first) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * width; i += step)
    y[i] = x[i / width * columns + first + i % width];
}

// Rows of `width` to rows of `columns`.
template <class T>
__device__ void place(const T* x, T* y, index_t rows, index_t columns, index_t width) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * width; i += step)
    y[i / width * columns + i % width] = x[i];
}

// A block of 32 x 8 threads turns one tile, through shared memory so that both sides are read and written in rows.
template <class T>
__device__ void turn(const T* x, T* y, index_t rows, index_t columns) {
  __shared__ T tile[kTile][kTile + 1];
  const index_t across = (columns + kTile - 1) / kTile;
  const index_t r0 = blockIdx.x / across * kTile, c0 = blockIdx.x % across * kTile;
  for (int i = threadIdx.y; i < kTile; i += 8)
    if (r0 + i < rows && c0 + threadIdx.x < columns) tile[i][threadIdx.x] = x[(r0 + i) * columns + c0 + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += 8)
    if (c0 + i < columns && r0 + threadIdx.x < rows) y[(c0 + i) * rows + r0 + threadIdx.x] = tile[threadIdx.x][i];
}

}  // namespace

#define LPQ_RESHAPE(type, size)                                                                              \
  extern "C" __global__ void lpq_slice_columns_##size(const type* x, type* y, index_t rows, index_t columns, \
                                                      index_t width, index_t first) {                        \
    slice(x, y, rows, columns, width, first);                                                                \
  }                                                                                                          \
  extern "C" __global__ void lpq_place_columns_##size(const type* x, type* y, index_t rows, index_t columns, \
                                                      index_t width) {                                       \
    place(x, y, rows, columns, width);                                                                       \
  }                                                                                                          \
  extern "C" __global__ void lpq_transpose_##size(const type* x, type* y, index_t rows, index_t columns) {   \
    turn(x, y, rows, columns);                                                                               \
  }
LPQ_RESHAPE(uint8_t, 1)
LPQ_RESHAPE(uint16_t, 2)
LPQ_RESHAPE(uint32_t, 4)
LPQ_RESHAPE(uint64_t, 8)
