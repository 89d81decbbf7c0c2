// What the launcher tells the kernels lpq_gemm_packed_*.
#pragma once
#include <cstdint>

namespace lpq::cuda {

constexpr int kBlockN = 32, kBlockK = 128;  // of the packed format

// The driver's CUtensorMap: how TMA finds boxes of a tensor.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
// x as [k/64][m][64], weights as [n/32][k/128 * bits][512 bytes], scales and zeros as they are.
struct PackedMaps {
  TensorMap x, weights, scales, zeros;
};

struct GemmPackedArgs {
  const unsigned char* weights;  // [ceil(n/32), ceil(k/128), 512 * bits] bytes
  const uint16_t* x;             // [m, k], rows `k` apart, 16-byte aligned, k % 8 == 0
  uint16_t* y;                   // [m, n]
  const uint16_t* scales;        // [ceil(n/32), groups, 32]
  const unsigned char* zeros;    // u8 or f16, as the scales; null: `zero` everywhere
  const uint16_t* bias;          // [n] of the type of x, or null
  float* partial;                // two tiles a block
  unsigned* counters;            // two a strip, 0 before and after
  int m, n, k;                   // m <= 8 * token tiles of the kernel
  int n_blocks, k_blocks;        // of the packed format
  int groups;                    // scales a row
  int groups_per_block;          // 1, 2 or 4; 1 also for channels
  int channel;                   // one scale a row
  int scale_bf16;                // scales are bf16, not f16
  int zero_kind;                 // 0: constant, 1: u8, 2: f16
  float zero;                    // the constant, or what signed types add to every zero point
  int is_signed, exponent;       // of the type
  int warps_n, warps_k, stages;  // warps_k a power of two
  int strips, steps;             // strips of warps_n blocks of 32 rows; steps of warps_k blocks of 128 columns a strip
};

// What the streaming kernel is told besides; its strips are single blocks of 32 rows (warps_n 1), its counters one a
// strip.
struct StreamArgs {
  int slices;       // of K; a power of two unless `workspace`
  int sets;         // of strips; sets * slices blocks, those of a set in a row
  int k_most;       // packed blocks along K of the longest slice
  int strips_most;  // strips of the largest set
  int workspace;    // slices are added up through `partial`; else the blocks of a set are a cluster and do so in shared
                    // memory
  int overlap;      // launched while the operation before may still run
};

// What the streaming kernel's fast loop takes: units of `unit` packed blocks along K, groups that K fills, no zero
// points of groups.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline bool stream_simple(const GemmPackedArgs& g, int unit) {
  return g.zero_kind == 0 && g.k_blocks % unit == 0 && (g.channel || g.groups == g.k_blocks * g.groups_per_block);
}

// How the wide kernel takes zero points out.
constexpr int kZeroNone = 0;      // there are none
constexpr int kZeroConstant = 1;  // exactly, in the pairs: one for all
constexpr int kZeroOfGroups = 2;  // exactly, in the pairs: those of groups, in u8
constexpr int kZeroSums = 3;      // through the sums of the activations

// What the wide kernel is told besides; its steps are those of K, one packed block each.
struct WideArgs {
  int width;        // packed blocks of a strip
  int token_tiles;  // tiles of 8 T tokens
  int items;        // strips times token tiles, tiles first
  int zero_mode;
  int vectors;        // rows of y start at multiples of 16 bytes
  int overlap;        // launched while the operation before may still run
  int sums_pitch;     // tokens of a row of `sums`
  const float* sums;  // of activations: [128 k][groups_per_block][sums_pitch], where zero_mode wants them
};

}  // namespace lpq::cuda
