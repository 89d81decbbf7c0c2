// What the launchers of gemm_marlin and gemm_turbomind tell their kernels (stripes.cuh).
#pragma once
#include <cstdint>

namespace lpq::cuda {

constexpr int kTileColumns = 64;  // of a warp
// Sub-tiles of 16 k of a warp, a step: 2 KiB of codes.
template <int Bits>
constexpr int kSubTiles = Bits == 4 ? 4 : 2;
inline int sub_tiles(int bits) { return bits == 4 ? kSubTiles<4> : kSubTiles<8>; }

struct StripeArgs {
  const unsigned char* weights;  // sub-tiles of 16 k, in pieces of 32 columns: 64 * bits bytes each
  const uint16_t* x;             // [m, k], 16-byte aligned, k % 8 == 0
  uint16_t* y;                   // [m, n]
  const unsigned char* scales;   // [groups, n_pad], in the layout's order
  const unsigned char* zeros;    // [groups, n_pad] codes in MARLIN's order, or null
  const uint16_t* bias;          // [n] of the type of x, or null
  float* partial;                // a tile of sums for each block
  unsigned* counters;            // one a block, 0 before and after
  unsigned long long policy;     // for L2: what is read once leaves first
  unsigned magic;                // 1024 or 128 twice: a code or-ed into it is that much more
  long long k_stride, n_stride;  // bytes from a sub-tile to the next along K; from a piece to the next along N
  int m, n, k;
  int n_pad, k_pad;         // as stored: multiples of 64 and 32
  int groups, group_shift;  // log2 of the group's length
  int channel;              // one scale a row of W, in the order of MARLIN's accumulators
  int scale_bf16;
  int log_n, log_k, stages;  // warps: 2^log_n along N times 2^log_k along K; 2, 3 or 4 stages
  int strips, steps;         // tiles of 64 << log_n columns, and of 16 sub_tiles(bits) << log_k along K
  int first_batch, batches;  // of 8 T tokens, that this launch multiplies
  int per;                   // tiles of a block's stripe
};

}  // namespace lpq::cuda
