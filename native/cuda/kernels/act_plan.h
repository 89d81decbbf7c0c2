// How products of low-bit activations are cut (gemm_act.cuh): plain arithmetic, which the host tests too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/kernels/gemm_act.h"

namespace lpq::cuda {

// What a caller may ask for; 0: as chosen. `shared`: -1 as chosen, else the items that are shared in equal runs.
struct ActWish {
  int tokens = 0, cluster = 0, stages = 0, shared = -1;
};

struct ActPlan {
  int tiles = 0;  // of eight tokens
  int blocks = 0;
  unsigned shared_bytes = 0;
  int token_tiles = 0, items = 0, shared = 0, stages = 0, cluster = 1;
};

// Steps that adding up the sums of shared items costs, in steps of a tile of 8 `tiles` tokens; measured, docs/kernels.md.
inline double act_sharing(int tiles) { return tiles >= 16 ? 16 : tiles >= 8 ? 10 : 6; }

inline std::optional<ActPlan> plan_act(int multiprocessors, int shared_per_block, int64_t m, int64_t n, int64_t k, bool nibbles, bool mixed, const ActWish& wish) {
  const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  ActPlan plan;
  plan.tiles = wish.tokens ? wish.tokens / 8 : m <= 16 ? 2 : m <= 32 ? 4 : m <= 64 ? 8 : 16;
  const int64_t tiles = up(m, 8 * plan.tiles), strips = up(n, kActRows), k_blocks = up(k, 128);
  // Two blocks fetch a strip for each other where there are two tiles of tokens; a last tile alone would waste a block.
  plan.cluster = wish.cluster ? wish.cluster : 1;
  plan.token_tiles = static_cast<int>(up(tiles, plan.cluster));
  plan.items = static_cast<int>(strips * plan.token_tiles);
  const int64_t units = multiprocessors / plan.cluster, rest = plan.items % units;
  const int bytes = act_stage(plan.tiles, nibbles, mixed).bytes, fixed = 1024 + 8 * 512;
  plan.stages = static_cast<int>(std::min<int64_t>(kActStages, (shared_per_block - fixed) / bytes));
  if (wish.stages) plan.stages = std::min(plan.stages, wish.stages);
  if (plan.stages < 2) return std::nullopt;
  plan.shared_bytes = static_cast<unsigned>(fixed + plan.stages * bytes);
  // A last round that is not full costs as much as a full one; shared out it costs its share and the adding up.
  const double saved = rest == 0 ? 0 : static_cast<double>(k_blocks) * (1 - static_cast<double>(rest) / static_cast<double>(units));
  plan.shared = wish.shared >= 0 ? std::min(wish.shared, plan.items) : saved > act_sharing(plan.tiles) ? static_cast<int>(rest) : 0;
  // Every block has a step of the shared items at least: who waits for the others counts them.
  if (plan.shared > 0) plan.shared = static_cast<int>(std::min<int64_t>(plan.items, std::max<int64_t>(plan.shared, up(units, k_blocks))));
  plan.blocks = static_cast<int>(std::min<int64_t>(units, plan.shared > 0 ? plan.shared * k_blocks : plan.items)) * plan.cluster;
  return plan;
}

}  // namespace lpq::cuda
