// What the launcher of gemm_sparse_marlin tells its kernels (sparse.cuh).
#pragma once
#include <cstdint>

#include "cuda/gemm/families/packed.h"

namespace lpq::cuda {

constexpr int kSparseColumns = 64;  // of a warp: four products of mma.sp
constexpr int kMostSparseStages = 8;
constexpr int kSparseK = 128;  // of a warp, a step: four tiles, a group
// A warp's bytes of a step: codes, metadata, scales of a group.
template <int Bits>
constexpr int kSparseSlot = 512 * Bits + 1024 + 128;

struct SparseArgs {
  const unsigned char* weights;   // tiles of 64 n x 32 k: 128 * bits bytes; n first
  const unsigned char* metadata;  // the same tiles: 256 bytes
  const uint16_t* x;              // [m, k], 16-byte aligned, k % 8 == 0
  uint16_t* y;                    // [m, n]
  const unsigned char* scales;    // f16 [groups, n_pad], in the format's order
  const uint16_t* bias;           // [n] of the type of x, or null
  float* partial;                 // two tiles of sums a block
  unsigned* counters;             // one a column of tiles, 0 before and after
  unsigned long long policy;      // for L2: what is read once leaves first
  unsigned magic;                 // 1024 or 128 twice: a code or-ed into it is that much more
  int m, n, k;
  int n_pad, k_pad;          // as stored: multiples of 64 and 128
  int channel;               // one scale a row of W, in place
  int overlap;               // launched while the operation before may still run
  int vectors;               // rows of y start at multiples of 16 bytes
  int log_n, log_k, stages;  // warps: 2^log_n along N times 2^log_k along K; 2 to 6 stages, 8 with TMA
  int strips, steps;         // tiles of 64 << log_n columns, of 128 << log_k along K
  int batches;               // of 8 T tokens
  int per;                   // tiles of a block's run
};

// For TMA: x as [k/64][m][64], codes and metadata as [k/32][n/64][bytes of a tile], scales as
// [groups][n/64][64].
struct SparseMaps {
  TensorMap x, weights, metadata, scales;
};

// Where a block's shared memory has what, in bytes.
struct SparseShared {
  int x, stage, exchange, flag, total;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    inline SparseShared sparse_shared(int bits, int tiles, int log_n, int log_k, int stages) {
  SparseShared s{};
  s.x = 2048 * tiles << log_k;
  s.stage = (s.x + ((512 * bits + 1024 + 128) << (log_n + log_k)) + 1023) & ~1023;
  s.exchange = stages * s.stage;
  s.flag = s.exchange + (log_k == 0 ? 0 : (2048 * tiles) << (log_n + log_k - 1));
  s.total = s.flag + 16 + 16 * kMostSparseStages;
  return s;
}

}  // namespace lpq::cuda
