// What the launcher tells the kernels lpq_large_* (gemm_large.cuh) besides GemmPackedArgs.
#pragma once
#include "cuda/kernels/gemm_packed.h"

namespace lpq::cuda {

constexpr int kLargeWarps = 8;    // along N: strips of 256 columns
constexpr int kLargeStages = 4;   // of 64 k
constexpr int kLargeSide = 256;   // bytes of scales and zero points of a warp and stage
constexpr int kLargeShelf = 1280;  // bytes of a warp's outputs on their way: 16 tokens of 32 columns, 80 bytes apart

struct LargeArgs {
  int token_tiles;  // of 8 T tokens
  int band;         // token tiles that are neighbours in the order of tiles
  int per;          // steps of 128 k of a block's run, or 0: whole tiles, gridDim.x apart
  int vectors;      // rows of y start at multiples of 16 bytes
};

#ifdef __CUDACC__
__host__ __device__
#endif
inline int large_stage(int tiles) { return 1024 * tiles + kLargeWarps * kLargeSide; }
#ifdef __CUDACC__
__host__ __device__
#endif
inline int large_shared(int tiles) { return kLargeStages * large_stage(tiles) + kLargeWarps * kLargeShelf + 16; }

// Of gemm_dense.cu: 64 k of 256 columns and 128 tokens a stage.
inline int dense_shared() { return kLargeStages * 128 * (256 + 128) + kLargeWarps * kLargeShelf; }

}  // namespace lpq::cuda
