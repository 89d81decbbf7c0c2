// A step of w4ax_mixed.cuh, 128 of k: its copies to a stage, and its products.
#pragma once
#include "cuda/gemm/families/w4ax_mixed.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/w4ax_mma.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

template <int T>
struct MixedTile {
  static constexpr int kAcross = T >= 8 ? 2 : 1;              // warps side by side along the tokens
  static constexpr int kRows = 128 * kAcross / 8 / 16;        // tiles of 16 rows a warp
  static constexpr int kTokens = T / kAcross;                 // tiles of 8 tokens a warp
  static constexpr int kX = 64 * kMixedRows;                  // where a stage's activations begin,
  static constexpr int kWScales = kX + 1024 * T;              // the scales of its rows
  static constexpr int kXScales = kWScales + 4 * kMixedRows;  // and of its tokens
  static constexpr int kVectors = kRows * kTokens;            // of sums a lane
  static constexpr int kParts = 8 * kVectors * 128;           // floats of a tile
  __device__ __forceinline__ static int row0(int warp) { return warp / kAcross * kRows; }      // in 16s
  __device__ __forceinline__ static int token0(int warp) { return warp % kAcross * kTokens; }  // in 8s
};

// Starts the copies of one step: weights, activations and scales. What lies outside the tensors is 0.
template <int T>
__device__ __forceinline__ void copy_step(const MixedArgs& a, uint32_t to, int item, int kb) {
  using Tile = MixedTile<T>;
  const int strip = item / a.token_tiles, token0 = item % a.token_tiles * 8 * T, thread = static_cast<int>(threadIdx.x);
  const int rows = (a.n + 15) / 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int piece = thread + i * kMixedThreads, row = strip * 8 + piece / 64;
    const unsigned char* const from = a.w + (static_cast<long long>(row) * a.k_blocks + kb) * 1024 + piece % 64 * 16;
    cp_async_16(to + piece * 16, row < rows ? from : a.w, row < rows ? 16 : 0);
  }
  const int place = a.blocks[kb];
  if (place >= 0) {
    for (int piece = thread; piece < 64 * T; piece += kMixedThreads) {
      const int row = piece / 8, chunk = piece % 8;
      const bool there = token0 + row < a.m;
      const signed char* const from =
          a.x8 + static_cast<long long>(token0 + row) * 128 * a.eights + place * 128 + chunk * 16;
      cp_async_16(to + Tile::kX + place_of_8bit(row, chunk), there ? from : a.x8, there ? 16 : 0);
    }
  } else {
    for (int piece = thread; piece < 32 * T; piece += kMixedThreads) {
      const int row = piece / 4, chunk = piece % 4;
      const bool there = token0 + row < a.m;
      const unsigned char* const from =
          a.x4 + static_cast<long long>(token0 + row) * 64 * a.fours + ~place * 64 + chunk * 16;
      cp_async_16(to + Tile::kX + place_of_4bit(row, chunk), there ? from : a.x4, there ? 16 : 0);
    }
  }
  for (int piece = thread; piece < 32 + 2 * T; piece += kMixedThreads) {
    const bool weights = piece < 32;
    const int at = weights ? strip * kMixedRows + piece * 4 : token0 + (piece - 32) * 4,
              pitch = weights ? a.w_pitch : a.x_pitch;
    const float* const from = weights ? a.w_scales : a.x_scales;
    cp_async_16(to + Tile::kWScales + piece * 16, at < pitch ? from + static_cast<long long>(kb) * pitch + at : from,
                at < pitch ? 16 : 0);
  }
}

// One block of 128 of k: its products, exact, and scaled into the sums.
template <int T>
__device__ __forceinline__ void multiply_step(uint32_t at, bool four,
                                              float (&sum)[MixedTile<T>::kRows][MixedTile<T>::kTokens][4], int warp,
                                              int lane) {
  using Tile = MixedTile<T>;
  const int row0 = Tile::row0(warp), token0 = Tile::token0(warp);
  FragmentA<4> w[Tile::kRows][2];
  float row_scale[Tile::kRows][2];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 q = ld_shared_v4(at + (row0 + r) * 1024 + v * 512 + lane * 16);
      w[r][v] = {q.x, q.y, q.z, q.w};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = (row0 + r) * 16 + FragmentC<float>::row(lane, 2 * i);
      row_scale[r][i] = __uint_as_float(ld_shared(at + Tile::kWScales + row * 4)) * (four ? 1.0f : 0.0625f);
    }
  }
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
    const int token = (token0 + t) * 8 + Matrix8x8::addressed_row(lane), matrix = Matrix8x8::addressed(lane);
    FragmentC<int> part[Tile::kRows] = {};
    uint32_t b[4];
    if (four) {
      ldmatrix_x4(b, at + Tile::kX + place_of_4bit(token, matrix));
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
        for (int v = 0; v < 2; ++v) mma_m16n8k64_s4(part[r], w[r][v], b[2 * v], b[2 * v + 1]);
    } else {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        ldmatrix_x4(b, at + Tile::kX + place_of_8bit(token, 4 * v + matrix));
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk)
            mma_m16n8k32_s8(part[r], widen_rows(w[r][v][2 * chunk], w[r][v][2 * chunk + 1]), b[2 * chunk],
                            b[2 * chunk + 1]);
      }
    }
    const uint2 scales = ld_shared_v2(at + Tile::kXScales + ((token0 + t) * 8 + FragmentC<float>::column(lane)) * 4);
    const float token_scale[2] = {__uint_as_float(scales.x), __uint_as_float(scales.y)};
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) add_scaled(sum[r][t], part[r], token_scale, row_scale[r]);
  }
}

}  // namespace lpq::cuda
