// How the blocks of experts_scaled.cuh share the items that do not fill them: decided by every block for itself, out of
// how many items there are, which the host does not know.
#pragma once
#include "cuda/gemm/families/scaled.h"

namespace lpq::cuda {

// What it takes to share an item, in eighths of a step of 256 rows and 128 tokens, by the constants that choose_scaled
// was fitted with (scaled_plan.h, CutCosts): to meet and to write sums, for each block that is waited for, and where
// the one that begins an item adds the others' sums up.
constexpr int kShareMeets = 15, kShareEach = 3, kShareOwners = 37;

// Of `items`, those that are left when all blocks do whole ones in turn: by as many blocks each as end first, or in
// equal runs, or whole after all. What shares evenly are blocks of one item; equal runs are of more than half an item.
static __device__ __forceinline__ void share_items(ScaledArgs& a, int items, int k_blocks, int blocks) {
  const int rest = items % blocks, most = rest ? min(min(blocks / rest, k_blocks), 8) : 1;
  int each = 1, least = 8 * k_blocks;
  for (int n = 2; n <= most; ++n) {
    const int time = 8 * ((k_blocks + n - 1) / n) + kShareMeets + kShareEach * n;
    if (time < least) each = n, least = time;
  }
  const int run = rest ? static_cast<int>((static_cast<long long>(rest) * k_blocks + blocks - 1) / blocks) : 0;
  a.items = items;
  a.owners = 2 * rest > blocks && 8 * run + kShareOwners < least;
  a.shared_items = a.owners || each > 1 ? rest : 0;
  a.shared_blocks = a.owners ? blocks : a.shared_items ? each * rest : 1;
}

}  // namespace lpq::cuda
