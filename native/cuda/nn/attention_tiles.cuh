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

// ROWS rows of HD from `from` on, `pitch` elements from one to the next, to a tile, by 128 threads: those from `there`
// on are 0. A thread keeps its place in rows, so that all its addresses are a step from one.
template <int HD, int ROWS, class T>
__device__ __forceinline__ void fetch_rows(unsigned tile, const T* from, index_t pitch, int there) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const unsigned to = tile + place<HD>(row, chunk);
  const T* source = from + row * pitch + chunk * 8;
#pragma unroll
  for (int i = 0; i < ROWS; i += 16) {
    const int bytes = row + i < there ? 16 : 0;
#pragma unroll
    for (int j = 0; j < HD; j += 64) cp_async_16(to + i * HD * 2 + j * 2, source + j, bytes);
    source += 16 * pitch;
  }
}

// Where chunk `chunk` of 8 columns of this lane's row begins, of chunks that go by two: `of` is the place of the first
// two in a tile of rows of a multiple of 128 bytes, of which the bits of a chunk are the row's twist.
__device__ __forceinline__ unsigned two_on(unsigned of, int chunk) {
  return (of ^ static_cast<unsigned>((chunk & 7) * 16)) + static_cast<unsigned>((chunk & ~7) * 16);
}
// The lane's part in rows of operand A, which rows of B transposed share, and in rows of B.
template <int HD>
__device__ __forceinline__ unsigned left_part() {
  const int lane = threadIdx.x % 32;
  return place<HD>(lane % 16, lane / 16);
}
template <int HD>
__device__ __forceinline__ unsigned right_part() {
  const int lane = threadIdx.x % 32;
  return place<HD>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// Operand A: 16 rows of a tile from `row` on, columns 16 d to 16 d + 15.
template <int HD>
__device__ __forceinline__ void rows_of(unsigned (&a)[4], unsigned tile, int row, int d) {
  ldmatrix_x4(a, two_on(tile + row * HD * 2 + left_part<HD>(), 2 * d));
}

// sums [16 rows, N] += A times the transpose of N rows of a tile, summed over its HD columns; a(d): operand A of
// columns 16 d and on.
//   (lane, reg) of sums[n] -> row lane / 4 + 8 (reg / 2), column 8 n + 2 (lane % 4) + reg % 2
template <int HD, int N, class T, class A>
__device__ __forceinline__ void times_transposed(float (&sums)[N / 8][4], unsigned tile, A a) {
  const unsigned own = tile + right_part<HD>();
#pragma unroll
  for (int d = 0; d < HD / 16; ++d) {
    unsigned left[4];
    a(left, d);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      unsigned b[4];
      ldmatrix_x4(b, two_on(own, 2 * d) + n * 16 * HD * 2);
      mma_m16n8k16<kBf16<T>>(sums[2 * n], left, b[0], b[1]);
      mma_m16n8k16<kBf16<T>>(sums[2 * n + 1], left, b[2], b[3]);
    }
  }
}

// sums [16 rows, WIDTH] += shares [16 rows, N], rounded to T, times N rows of a tile of HD columns, of which WIDTH are
// taken, from `first` on, a multiple of 64. Fragments of sums of one product are those of operand A of the next.
template <int HD, int WIDTH, int N, class T>
__device__ __forceinline__ void times_rows(float (&sums)[WIDTH / 8][4], const float (&shares)[N / 8][4], unsigned tile,
                                           int first) {
  const unsigned own = tile + first * 2 + left_part<HD>();
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    const unsigned p[4] = {pair<T>(shares[2 * n][0], shares[2 * n][1]), pair<T>(shares[2 * n][2], shares[2 * n][3]),
                           pair<T>(shares[2 * n + 1][0], shares[2 * n + 1][1]),
                           pair<T>(shares[2 * n + 1][2], shares[2 * n + 1][3])};
#pragma unroll
    for (int d = 0; d < WIDTH / 16; ++d) {
      unsigned b[4];
      ldmatrix_x4_trans(b, two_on(own, 2 * d) + n * 16 * HD * 2);
      mma_m16n8k16<kBf16<T>>(sums[2 * d], p, b[0], b[1]);
      mma_m16n8k16<kBf16<T>>(sums[2 * d + 1], p, b[2], b[3]);
    }
  }
}

}  // namespace lpq::cuda
