// What the launcher tells the kernels lpq_gemm_few_* (w4ax_few.cuh), and how their work is cut: plain arithmetic, which
// the host tests too.
#pragma once
#include "cuda/gemm/families/w4ax_mixed.h"

namespace lpq::cuda {

constexpr int kFewWarps = 16, kFewTokens = 16;  // of a block; tokens at most
constexpr int kFewRows = 4;                     // tiles of 16 rows that a warp goes through together, at most
// Of a block of 128 of k and 8 T tokens: codes of 8 bits, and scales.
LPQ_MIXED_BOTH constexpr int few_slot_bytes(int tiles) { return 1024 * tiles + 32 * tiles; }
LPQ_MIXED_BOTH constexpr int few_sums_bytes(int tiles, int rows) { return kFewWarps * rows * tiles * 512; }

struct FewArgs : MixedArgs {
  int rows;      // tiles of 16 rows; a block has an equal run of them
  int at_once;   // of these, that a warp goes through in a pass
  int split;     // warps that share K: 1, 2, 4, 8 or 16; of the others each so many have rows of their own
  int resident;  // all activations are in shared memory, else two blocks of k a warp (of 16 that share K)
  int overlap;   // the operation before may still run: weights, their scales and `blocks` are not its
};

struct FewPlan {
  int tiles = 0, rows = 0, at_once = 0, split = 0, kernel_rows = 0, blocks = 0;
  bool resident = false;
  unsigned shared_bytes = 0;  // 0: activations do not fit, not even two blocks of k a warp
};

// As many warps share K as leave one pass over a block's rows, since a pass ends with all warps waiting for each other.
inline FewPlan plan_few(int multiprocessors, int shared_per_block, int64_t m, int64_t n, int64_t k_blocks,
                        int split = 0) {
  FewPlan p;
  p.tiles = m <= 8 ? 1 : 2;
  p.rows = static_cast<int>((n + 15) / 16);
  p.blocks = std::min(multiprocessors, p.rows);
  const int most = (p.rows + p.blocks - 1) / p.blocks;
  const int64_t places = (k_blocks + 3) / 4 * 16;
  const auto bytes = [&](int rows, int64_t slots) {
    return places + few_sums_bytes(p.tiles, rows) + slots * few_slot_bytes(p.tiles);
  };
  p.resident = bytes(kFewRows, k_blocks) <= shared_per_block;
  p.split = kFewWarps;
  if (p.resident && split) p.split = split;
  if (p.resident && !split)
    while (p.split > 1 && kFewWarps / p.split * kFewRows < most) p.split /= 2;
  const int groups = kFewWarps / p.split, passes = (most + groups * kFewRows - 1) / (groups * kFewRows);
  p.at_once = (most + groups * passes - 1) / (groups * passes);
  p.kernel_rows = p.at_once <= 2 ? 2 : kFewRows;
  const int64_t all = bytes(p.kernel_rows, p.resident ? k_blocks : 2 * kFewWarps);
  if (all <= shared_per_block) p.shared_bytes = static_cast<unsigned>(all);
  return p;
}

// Whether it ends before the kernel of wgmma, on an H200 (docs/internals/kernels/w4ax.md): always with one tile
// of tokens, with two where a block has no more rows than its warps go through while all share K.
inline bool few_is_faster(const FewPlan& p) {
  return p.shared_bytes > 0 && (p.tiles == 1 || p.rows <= kFewRows * p.blocks);
}

}  // namespace lpq::cuda
