// What the launcher tells the kernels lpq_gemm_mixed_* (w4ax_mixed.cuh), and how their work is cut: plain arithmetic,
// which the host tests too.
#pragma once
#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define LPQ_MIXED_BOTH __host__ __device__ __forceinline__
#else
#define LPQ_MIXED_BOTH inline
#endif

namespace lpq::cuda {

constexpr int kMixedRows = 128;  // of weights in a strip
constexpr int kMixedThreads = 256;
// What a block of 128 of k costs where its activations have 4 and 8 bits: instructions of the tensor core of a 16x8
// tile (docs/internals/kernels/w4ax.md).
constexpr int kMixedCost4 = 2, kMixedCost8 = 4;

struct MixedArgs {
  void* y;                  // [m, n]
  const signed char* x8;    // [m, 128 eights]
  const unsigned char* x4;  // [m, 64 fours]
  const unsigned char* w;   // [ceil(n / 16), k_blocks, 1024]
  const float* x_scales;    // [k_blocks, x_pitch]
  const float* w_scales;    // [k_blocks, w_pitch]
  const float* bias;        // [n] or null
  const int* blocks;        // for each 128 of k its number among those of 8 bits, or ~ of that among those of 4
  float* partial;           // two tiles a block
  unsigned* counters;       // one an item: steps that are done; 0 before and after
  int m, n, k_blocks, eights, fours, x_pitch, w_pitch;
  int token_tiles;    // tiles of 8 T tokens
  int items, shared;  // strips times token_tiles; the first `shared` of them are cut into runs of equal cost
  int stages, store;  // type of y: kW4axStore*
};

LPQ_MIXED_BOTH constexpr int mixed_stage_bytes(int tiles) {
  return 64 * kMixedRows + 1024 * tiles + 4 * kMixedRows + 32 * tiles;
}

// The steps of a block's run among the shared items, counted through all items: from the first step that begins at or
// after its share of the cost. prefix[b]: cost of the blocks before b, prefix[k_blocks] of all.
LPQ_MIXED_BOTH int mixed_start(const int* prefix, int k_blocks, int shared, int unit, int units) {
  const long long at = static_cast<long long>(shared) * prefix[k_blocks] * unit / units;
  const int item = static_cast<int>(at / prefix[k_blocks]), rest = static_cast<int>(at % prefix[k_blocks]);
  int low = 0, high = k_blocks;  // the least b with prefix[b] >= rest
  while (low < high) {
    const int middle = (low + high) / 2;
    if (prefix[middle] >= rest) high = middle;
    else low = middle + 1;
  }
  return item * k_blocks + low;
}

// What steps a block runs through: its run [first, last) of the shared items, then whole ones.
struct MixedWalk {
  int item, kb, left, steps;
  LPQ_MIXED_BOTH MixedWalk(const MixedArgs& a, int first, int last, int unit, int units)
      : item(first / a.k_blocks), kb(first % a.k_blocks), left(last - first) {
    const int whole = a.items - a.shared > unit ? (a.items - a.shared - unit + units - 1) / units : 0;
    steps = left + whole * a.k_blocks;
    if (left == 0) item = a.shared + unit, kb = 0;
  }
  // Whether the step that it stands at is the last of its item for this block.
  LPQ_MIXED_BOTH bool ends(const MixedArgs& a) const { return kb + 1 == a.k_blocks || left == 1; }
  LPQ_MIXED_BOTH void next(const MixedArgs& a, int unit, int units) {
    ++kb;
    if (--left == 0) item = a.shared + unit, kb = 0;
    else if (kb == a.k_blocks) kb = 0, item += left > 0 ? 1 : units;
  }
};

struct MixedPlan {
  int tiles = 0, blocks = 0, token_tiles = 0, items = 0, shared = 0, stages = 0;
  unsigned shared_bytes = 0;
};

// Tiles of 16, 64 or 128 tokens, the least that hold all or the largest. Whole rounds of items; a last one that would
// keep less than nine tenths of the multiprocessors busy is shared.
inline MixedPlan plan_mixed(int multiprocessors, int shared_per_block, int64_t m, int64_t n, int64_t k_blocks,
                            int tokens = 0, int shared = -1) {
  MixedPlan p;
  p.tiles = tokens ? tokens / 8 : m <= 16 ? 2 : m <= 64 ? 8 : 16;
  const int64_t strips = (n + kMixedRows - 1) / kMixedRows;
  p.token_tiles = static_cast<int>((m + 8 * p.tiles - 1) / (8 * p.tiles));
  p.items = static_cast<int>(strips * p.token_tiles);
  const int rest = p.items % multiprocessors;
  p.shared = shared >= 0 ? std::min(shared, p.items) : 10 * rest < 9 * multiprocessors ? rest : 0;
  const int64_t steps = p.shared * k_blocks;
  p.blocks = static_cast<int>(std::min<int64_t>(multiprocessors, std::max<int64_t>(steps, p.items - p.shared)));
  const int fixed = static_cast<int>(4 * (k_blocks + 2) + 15) / 16 * 16;
  p.stages = std::min(4, (shared_per_block - fixed) / mixed_stage_bytes(p.tiles));
  p.shared_bytes = static_cast<unsigned>(fixed + p.stages * mixed_stage_bytes(p.tiles));
  return p;
}

}  // namespace lpq::cuda
