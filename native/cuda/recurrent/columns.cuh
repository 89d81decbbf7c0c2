// States [rows, width] whose columns do not see each other, taken through the tokens of a sequence. A block takes
// kColumns columns of one state:
//   (warp, lane, j, i) -> row 8 j + lane % 8, column 8 warp + 2 (lane / 8) + i
// so that sums over rows are sums in a lane and over eight lanes, always in that order: a sequence in pieces gives the
// same bits.
#pragma once
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/recurrent/past.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

constexpr int kColumns = 32, kColumnThreads = 128;

// States [rows, width] of every head; a group of heads shares inputs of `rows` numbers.
struct StateShape {
  int heads, groups, rows, width;
};

// A block's part of the work: kColumns columns of a head's state. grid: (heads * blocks of columns, sequences).
struct StateColumns {
  StateShape of;
  int head, group, first, there;
  __device__ explicit StateColumns(const StateShape& of) : of(of) {
    const int parts = (of.width + kColumns - 1) / kColumns;
    head = static_cast<int>(blockIdx.x) / parts, first = static_cast<int>(blockIdx.x) % parts * kColumns;
    there = min(kColumns, of.width - first), group = head / (of.heads / of.groups);
  }
  // Where the state is kept; null: it is not.
  __device__ float* kept(const Past& past, const Run& run) const {
    if (run.slot < 0) return nullptr;
    return past.state + (static_cast<index_t>(run.slot) * of.heads + head) * of.rows * of.width + first;
  }
  // Where token t has what its group brings, and these columns.
  __device__ index_t shared(index_t t) const { return (t * of.groups + group) * of.rows; }
  __device__ index_t own(index_t t) const { return (t * of.heads + head) * of.width + first; }
};

// Tokens that are fetched at once.
template <int R>
constexpr int kTokensAtOnce = R <= 8 ? 16 : 128 / R;

__device__ __forceinline__ float over_rows(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  v += __shfl_xor_sync(0xffffffffu, v, 2);
  v += __shfl_xor_sync(0xffffffffu, v, 4);
  return v;
}

// Where a thread is.
struct Column {
  int row, first;  // first of two columns of the block
  __device__ Column() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    row = lane % 8, first = 8 * warp + 2 * (lane / 8);
  }
};

// `count` floats (a multiple of four) to shared memory, zeros beyond `there`; wide: `from` is aligned, and `there` in
// fours.
__device__ __forceinline__ void fetch_floats(float* to, const float* from, int count, int there, bool wide) {
  if (wide) {
    for (int i = 4 * static_cast<int>(threadIdx.x); i < count; i += 4 * kColumnThreads)
      cp_async_16(shared_address(to + i), i < there ? from + i : from, i < there ? 16 : 0);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kColumnThreads)
    cp_async_4(shared_address(to + i), i < there ? from + i : from, i < there ? 4 : 0);
}

// A thread's part of a state: S[j][i], C columns. Whole blocks of a width that C divides go C at once, so that a warp's
// access is of whole sectors. At: where the thread is, a Column or another that has its first row and its first column.
template <int R, int C = 2>
struct StatePart {
  float s[R][C];
  // `from`: of column 0 of the block; null: zeros.
  template <class At>
  __device__ void load(const float* from, int rows, int width, int there, const At& at) {
    if (from && whole(width, there)) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int row = 8 * j + at.row;
        const Columns part = row < rows ? *reinterpret_cast<const Columns*>(place(from, row, width, at)) : Columns{};
#pragma unroll
        for (int i = 0; i < C; ++i) s[j][i] = part.at[i];
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < R; ++j)
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const int row = 8 * j + at.row;
        s[j][i] = from && row < rows && at.first + i < there ? place(from, row, width, at)[i] : 0.0f;
      }
  }
  template <class At>
  __device__ void store(float* to, int rows, int width, int there, const At& at) const {
    if (whole(width, there)) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        Columns part;
#pragma unroll
        for (int i = 0; i < C; ++i) part.at[i] = s[j][i];
        if (8 * j + at.row < rows) *reinterpret_cast<Columns*>(place(to, 8 * j + at.row, width, at)) = part;
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < R; ++j)
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const int row = 8 * j + at.row;
        if (row < rows && at.first + i < there) place(to, row, width, at)[i] = s[j][i];
      }
  }

 private:
  struct alignas(4 * C) Columns {
    float at[C];
  };
  // A state begins at a multiple of its width, and a block at a multiple of kColumns.
  __device__ static bool whole(int width, int there) { return width % C == 0 && there == kColumns; }
  template <class T, class At>
  __device__ static T* place(T* state, int row, int width, const At& at) {
    return state + static_cast<index_t>(row) * width + at.first;
  }
};

// A step's block has kStepThreads threads: (warp, lane, j, i) -> row 8 j + 4 warp + lane / 8, column 4 (lane % 8) + i.
// Eight lanes read and write a whole line, and twice as much is under way as by threads of two columns.
constexpr int kStepThreads = 64;
struct StepThread {
  int row, first;
  __device__ StepThread() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    row = 4 * warp + lane / 8, first = 4 * (lane % 8);
  }
};

// Each warp's N sums of a block of step threads.
template <int N>
using StepSums = float4[kStepThreads / 32][N][kColumns / 4];

// N sums (at most four) of each column over all rows, in the order of over_rows: fours of rows in a warp, then both
// warps.
template <int N>
__device__ __forceinline__ void over_step(float (&sums)[N][4], StepSums<N>& room, const StepThread& at) {
  const int quad = at.first / 4;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float (&sum)[4] = sums[n];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], 8);
      sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], 16);
    }
    if (at.row % 4 == n) room[at.row / 4][n][quad] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 a = room[0][n][quad], b = room[1][n][quad];
    sums[n][0] = a.x + b.x, sums[n][1] = a.y + b.y, sums[n][2] = a.z + b.z, sums[n][3] = a.w + b.w;
  }
}

}  // namespace lpq::cuda
