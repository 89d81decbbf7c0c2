// What the launcher tells the kernels lpq_large_* (gemm_large.cuh) besides GemmPackedArgs.
#pragma once
#include "cuda/kernels/gemm_packed.h"

namespace lpq::cuda {

constexpr int kLargeWarps = 8;     // strips of 256 columns, a packed block a warp
constexpr int kLargeStages = 3;    // of 64 k. Odd, so that a block's words come with its first stage
constexpr int kLargeDeep = 2;      // slots of words of 128 k
constexpr int kLargeSide = 256;    // bytes of scales and zero points of a packed block and stage of 64 k
constexpr int kLargeWords = 4096;  // bytes of a strip's words of 128 k, for each bit
constexpr int kLargeShelf = 512;   // bytes of a warp's outputs on their way: 8 tokens of 32 columns

struct LargeArgs {
  int token_tiles;  // of 8 T tokens
  int band;         // token tiles that are neighbours in the order of tiles
  int per;          // steps of 128 k of a block's run, or 0: whole tiles, gridDim.x apart
  int vectors;      // rows of y start at multiples of 16 bytes
};

#ifdef __CUDACC__
__host__ __device__
#endif
inline int large_shared(int bits, int tiles) {
  return kLargeStages * (1024 * tiles + kLargeWarps * kLargeSide) + kLargeDeep * kLargeWords * bits + kLargeWarps * kLargeShelf + 16;
}

// Of gemm_dense.cu: 64 k of 256 columns and 128 tokens a stage.
constexpr int kDenseStages = 4;
inline int dense_shared() { return kDenseStages * 128 * (256 + 128) + kLargeWarps * kLargeShelf; }

}  // namespace lpq::cuda
