// Tiles of 16-bit rows in shared memory, and what a warp makes of them by mma.m16n8k16 (ptx/mma.cuh): attention.cu,
// attention_backward.cuh.
#pragma once
#include <type_traits>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

constexpr int kTaskQueries = 64;

struct AttentionTask {  // 64 tokens of one sequence
  int first, length, query;
};

template <class T>
constexpr bool kBf16 = std::is_same_v<T, bf16>;

template <class T>
__device__ __forceinline__ unsigned pair(float a, float b) {
  union {
    T item[2];
    unsigned raw;
  } bits;
  bits.item[0] = narrow<T>(a);
  bits.item[1] = narrow<T>(b);
  return bits.raw;
}

// Bytes from a tile's start to 16-byte chunk `chunk` of row `row`, in an order without bank conflicts for ldmatrix.
template <int HD>
__device__ __forceinline__ unsigned place(int row, int chunk) {
  constexpr int kChunks = HD / 8;
  const int twist = kChunks >= 8 ? row & 7 : (row >> 1) & (kChunks - 1);
  return static_cast<unsigned>((row * kChunks + (chunk ^ twist)) * 16);
}

// `rows` rows of HD from `from` on, `pitch` elements from one to the next, to a tile: those from `there` on are 0.
template <int HD, int THREADS, class T>
__device__ __forceinline__ void fetch_rows(unsigned tile, const T* from, index_t pitch, int rows, int there) {
  constexpr int kChunks = HD / 8;
  for (int i = threadIdx.x; i < rows * kChunks; i += THREADS) {
    const int row = i / kChunks, chunk = i % kChunks;
    cp_async_16(tile + place<HD>(row, chunk), from + (row < there ? row : 0) * pitch + chunk * 8, row < there ? 16 : 0);
  }
}

// Operand A: 16 rows of a tile, columns 16 d to 16 d + 15.
template <int HD>
__device__ __forceinline__ void rows_of(unsigned (&a)[4], unsigned tile, int row, int d) {
  const int lane = threadIdx.x % 32;
  ldmatrix_x4(a, tile + place<HD>(row + lane % 16, 2 * d + lane / 16));
}

// sums [16 rows, N] += A times the transpose of N rows of a tile, summed over its HD columns; a(d): operand A of
// columns 16 d and on.
//   (lane, reg) of sums[n] -> row lane / 4 + 8 (reg / 2), column 8 n + 2 (lane % 4) + reg % 2
template <int HD, int N, class T, class A>
__device__ __forceinline__ void times_transposed(float (&sums)[N / 8][4], unsigned tile, A a) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 0; d < HD / 16; ++d) {
    unsigned left[4];
    a(left, d);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      unsigned b[4];
      ldmatrix_x4(b, tile + place<HD>(n * 16 + (lane / 16) * 8 + lane % 8, 2 * d + (lane / 8) % 2));
      mma_m16n8k16<kBf16<T>>(sums[2 * n], left, b[0], b[1]);
      mma_m16n8k16<kBf16<T>>(sums[2 * n + 1], left, b[2], b[3]);
    }
  }
}

// sums [16 rows, WIDTH] += shares [16 rows, N], rounded to T, times N rows of a tile of HD columns, of which WIDTH are
// taken, from 8 `first` on. Fragments of sums of one product are those of operand A of the next.
template <int HD, int WIDTH, int N, class T>
__device__ __forceinline__ void times_rows(float (&sums)[WIDTH / 8][4], const float (&shares)[N / 8][4], unsigned tile,
                                           int first) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    const unsigned p[4] = {pair<T>(shares[2 * n][0], shares[2 * n][1]), pair<T>(shares[2 * n][2], shares[2 * n][3]),
                           pair<T>(shares[2 * n + 1][0], shares[2 * n + 1][1]),
                           pair<T>(shares[2 * n + 1][2], shares[2 * n + 1][3])};
#pragma unroll
    for (int d = 0; d < WIDTH / 16; ++d) {
      unsigned b[4];
      ldmatrix_x4_trans(b, tile + place<HD>(n * 16 + lane % 16, first + 2 * d + lane / 16));
      mma_m16n8k16<kBf16<T>>(sums[2 * d], p, b[0], b[1]);
      mma_m16n8k16<kBf16<T>>(sums[2 * d + 1], p, b[2], b[3]);
    }
  }
}

}  // namespace lpq::cuda
