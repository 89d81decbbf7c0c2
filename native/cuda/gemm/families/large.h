// What the launcher tells the kernels lpq_large_* (large.cuh) besides GemmPackedArgs.
#pragma once
#include "cuda/gemm/families/packed.h"

namespace lpq::cuda {

constexpr int kLargeWarps = 8;       // strips of 256 columns, a packed block a warp
constexpr int kLargeStages = 3;      // of 64 k
constexpr int kLargeFactors = 6144;  // bytes of what a strip's codes are turned into weights with: two slots of 64 k
constexpr int kLargeShelf = 512;     // bytes of a warp's outputs on their way: 8 tokens of 32 columns

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
  return kLargeStages * (1024 * tiles + kLargeWarps * 512 * ((bits + 1) / 2)) + kLargeFactors +
         kLargeWarps * kLargeShelf + 16;
}

}  // namespace lpq::cuda
