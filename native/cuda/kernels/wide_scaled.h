// How the kernel of scaled weights (wide_scaled.cuh) cuts a product: plain functions, which the host's test of the kernel uses, too.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "cuda/kernels/gemm_packed.h"
#include "cuda/kernels/wide_plan.h"

namespace lpq::cuda {

// What the kernel is told besides. Items are tiles of 8 T tokens of strips of `width` packed blocks; token tiles come in groups of `together`, and in
// a group all tiles of a strip before those of the next, so that blocks that run at once read few bytes that differ.
struct ScaledArgs {
  int width, strips;
  int token_tiles, together;
  int items;
  int shared_items;   // the first ones: their steps along K are cut into equal runs, none empty
  int shared_blocks;  // for so many blocks (as many as shared items at least); the other items are done whole, by all blocks in turn
  int owners;         // who begins a shared item adds up its sums
  int vectors;        // rows of y start at multiples of 16 bytes
  int overlap;        // launched while the operation before may still run
  float lift;         // what is added to signed codes to make them unsigned
  float zero;         // the constant zero point, without it
};

struct ScaledPlan {
  int tiles = 16, stages = 3, warps = 8, blocks = 1;
  unsigned shared = 0;
  double cycles = 0;  // as predicted
  ScaledArgs args{};
};

constexpr int kScaledStaging = 2048;  // bytes a warp
constexpr int kMostScaledStages = 8;

// Weights as pairs lose their zero points in one step: a constant whole one that f16 or bf16 hold beside the code.
inline bool scaled_constant(const GemmPackedArgs& a, bool integer, int bits, bool bf16) {
  return !integer || (a.zero_kind == 0 && a.zero == std::floor(a.zero) && a.zero >= 0 && a.zero <= (bf16 ? static_cast<float>(1 << bits) : 1023.0f));
}

inline std::optional<ScaledPlan> choose_scaled(int multiprocessors, int64_t shared_per_block, const GemmPackedArgs& a, int bits, const WideWish& wish = {}) {
  // Cycles of a multiprocessor: a packed block of K of 256 rows and 128 tokens; to begin; to store an item; to write sums and add them up.
  constexpr double kStep = 2500, kBegin = 7000, kStore = 3500, kShare = 14000;
  std::optional<ScaledPlan> best;
  for (int tiles : {16}) {
    if (wish.tokens && wish.tokens != 8 * tiles) continue;
    for (int width : {8, 4}) {
      if (wish.width && wish.width != width) continue;
      if (!wish.width && width == 4 && a.n_blocks > 4) continue;
      const int warps = width <= 4 ? 4 : 8;
      const int64_t stage = wide_stage_bytes(a, tiles, width, bits), room = shared_per_block - 1024 - warps * kScaledStaging;
      const int64_t stages = std::min<int64_t>(wish.stages ? wish.stages : kMostScaledStages, room / stage);
      if (stages < (wish.stages ? wish.stages : 2)) continue;
      const int64_t strips = plan_div_up(a.n_blocks, width), token_tiles = plan_div_up(a.m, 8 * tiles), items = strips * token_tiles;
      const double step = kStep * width / 8 * tiles / 16, size = width * tiles / 128.0;
      const auto consider = [&](int64_t blocks, int64_t shared_items, int64_t shared_blocks) {
        const int64_t waves = plan_div_up(items - shared_items, blocks), run = shared_items ? plan_div_up(shared_items * a.k_blocks, shared_blocks) : 0;
        const bool shared = shared_items > 0 && shared_items < shared_blocks, owners = shared && 2 * run >= a.k_blocks;
        const double cycles = kBegin + static_cast<double>(waves) * (static_cast<double>(a.k_blocks) * step + kStore * size) + static_cast<double>(run) * step +
                              (!shared ? 0.0 : owners ? kShare * size * 0.75 : kShare * size * (shared_blocks % shared_items == 0 ? 1.0 : 1.5));
        if (best && cycles >= best->cycles) return;
        best.emplace();
        best->tiles = tiles, best->stages = static_cast<int>(stages), best->warps = warps, best->blocks = static_cast<int>(blocks);
        best->shared = static_cast<unsigned>(1024 + stages * stage + warps * kScaledStaging);
        best->cycles = cycles;
        best->args.width = width, best->args.strips = static_cast<int>(strips), best->args.token_tiles = static_cast<int>(token_tiles);
        best->args.together = static_cast<int>(std::min<int64_t>(token_tiles, 8)), best->args.items = static_cast<int>(items);
        best->args.shared_items = static_cast<int>(shared_items), best->args.shared_blocks = static_cast<int>(shared_items ? shared_blocks : 1), best->args.owners = owners;
      };
      const int64_t most = std::min<int64_t>(multiprocessors, items * a.k_blocks), all = wish.blocks ? std::min<int64_t>(wish.blocks, most) : most;
      const int64_t rest = items % all, blocks = std::max(std::min(items, all), int64_t{1});
      if (!wish.blocks || rest == 0) consider(blocks, 0, 1);
      if (rest > 0) {
        const int64_t even = std::min(all / rest, int64_t{a.k_blocks}) * rest;
        consider(all, rest, std::min(all, rest * a.k_blocks));
        if (all / rest > 1 && !wish.blocks) consider(items < all ? even : all, rest, even);
      }
    }
  }
  return best;
}

inline PackedMaps scaled_maps(const GemmPackedArgs& a, int bits, const ScaledPlan& plan) {
  WidePlan boxes;
  boxes.tiles = plan.tiles, boxes.args.width = plan.args.width;
  return wide_maps(a, bits, boxes);
}

}  // namespace lpq::cuda
