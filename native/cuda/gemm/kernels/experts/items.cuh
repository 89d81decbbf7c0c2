// What the kernels of experts have to do: made by every block for itself out of the offsets, which the host does not
// know. A tile is up to 8 T rows of x of one expert; an item is a tile times a strip of its expert's weights. Items
// stand expert by expert, then strip by strip, then tile by tile, so that blocks that run at once read one strip's
// weights:
//   item -> (expert e: tiles before e <= item / strips < tiles before e + 1; then, of the items of e,
//            strip = item / tiles of e, tile = item % tiles of e)
#pragma once
#include "cuda/gemm/families/experts.h"
#include "cuda/gemm/gate.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/warp_scan.cuh"

namespace lpq::cuda {

struct ExpertItem {
  int expert, strip;
  int row, rows;  // of x and y
  bool once;      // no other tile reads this strip's weights
};

// Runs of whole items, of `scale` steps each, or of steps: even runs either way.
struct ExpertRuns {
  EvenRuns even;
  int scale;
  // The first step of a block.
  __device__ __forceinline__ int first(unsigned block) const { return even.first(block) * scale; }
};

template <int T>
struct ExpertItems {
  const int* tiles_before;  // [experts + 1], in shared memory
  const int* offsets;       // [experts + 1], there too
  int experts, strips;

  // By one warp, into `plan` of expert_plan_bytes(); the block's barrier has to follow. No items where the offsets do
  // not ascend inside x.
  static __device__ __forceinline__ void make(const ExpertArgs& a, int rows, int* plan, int lane) {
    int* const tiles_before = plan;
    int* const offsets = plan + a.experts + 1;
    const LaneRun run(a.experts, lane);
    int tiles = 0;
    bool bad = false;
#pragma unroll 4
    for (int e = run.from; e < run.to; ++e) {
      const int begin = a.offsets[e], end = a.offsets[e + 1];
      const bool ascends = begin >= 0 && begin <= end && end <= rows;
      bad |= !ascends;
      offsets[e] = begin;
      tiles_before[e] = tiles;  // of this lane's
      tiles += ascends ? (end - begin + 8 * T - 1) / (8 * T) : 0;
    }
    const int before = warp_before(tiles, lane);
    for (int e = run.from; e < run.to; ++e) tiles_before[e] += before;
    bad = __any_sync(0xffffffffu, bad);
    if (lane == 31) {
      tiles_before[a.experts] = bad ? 0 : before + tiles;
      offsets[a.experts] = a.offsets[a.experts];
      if (bad) *a.fault = 1;
    }
  }

  __device__ __forceinline__ ExpertItems(const int* plan, int of_experts, int of_strips)
      : tiles_before(plan), offsets(plan + of_experts + 1), experts(of_experts), strips(of_strips) {}
  __device__ __forceinline__ int count() const { return tiles_before[experts] * strips; }
  // The steps of all items, of up to so many blocks; `sharing`: as of ExpertArgs.
  __device__ __forceinline__ ExpertRuns runs(int steps, int sharing, int blocks) const {
    const int items = count();
    const long long total = static_cast<long long>(items) * steps;
    const int longest = static_cast<int>((total + blocks - 1) / blocks);
    if ((items + blocks - 1) / blocks * steps <= longest + sharing)
      return {EvenRuns(items, 1, min(items, blocks)), steps};
    return {EvenRuns(items, steps, static_cast<unsigned>(min(total, static_cast<long long>(blocks)))), 1};
  }
  __device__ __forceinline__ ExpertItem at(int item) const {
    const int tile = item / strips;
    int low = 0, high = experts;  // the last expert with no more tiles before it: it has some
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (tiles_before[middle] <= tile) low = middle;
      else high = middle;
    }
    const int tiles = tiles_before[low + 1] - tiles_before[low], within = item - tiles_before[low] * strips;
    const int row = offsets[low] + within % tiles * 8 * T;
    return {low, within / tiles, row, min(8 * T, offsets[low + 1] - row), tiles == 1};
  }
};

// The product of one item: its expert's weights, its rows.
template <int B>
__device__ __forceinline__ ExpertProduct product_of(const GemmPackedArgs& all, const ExpertArgs& a,
                                                    const ExpertItem& item) {
  ExpertProduct g{all, a.gate};
  const long long blocks = static_cast<long long>(item.expert) * all.n_blocks, sides = blocks * all.groups * 32;
  g.weights += blocks * all.k_blocks * (512 * B);
  g.scales += sides;
  if (g.zeros) g.zeros += sides * all.zero_kind;
  if (g.bias) g.bias += static_cast<long long>(item.expert) * all.n;
  g.x += static_cast<long long>(item.row) * all.k;
  g.y += static_cast<long long>(item.row) * a.gate.columns;
  g.m = item.rows;
  return g;
}

}  // namespace lpq::cuda
