// How products of low-bit activations are cut (w4ax.cuh): plain arithmetic, which the host tests too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/gemm/families/w4ax.h"
#include "ops/gemm.h"

namespace lpq::cuda {

struct W4axPlan {
  int tiles = 0;  // of eight tokens
  int blocks = 0;
  unsigned shared_bytes = 0;
  double microseconds = 0;  // as predicted
  int token_tiles = 0, items = 0, shared = 0, stages = 0, cluster = 1;
};

// Microseconds, fitted to the timings of bench/results/2026-11-21-h200-act8.json (an H200, four shapes, M = 16 to
// 4096): a launch and its first loads; a step of a tile of 16, 32, 64 and 128 tokens, alone and in pairs; adding up
// shared items; weights from memory.
constexpr double kW4axBegin = 5, kW4axWeights = 4.0e6 /* bytes a microsecond */;
constexpr double kW4axStep[2][4] = {{0.48, 0.53, 0.69, 1.18}, {0.46, 0.49, 0.66, 1.16}};
constexpr double kW4axShare[4] = {5, 7, 9, 15};

// The cut with the least of the time that these say.
inline std::optional<W4axPlan> plan_w4ax(int multiprocessors, int shared_per_block, int64_t m, int64_t n, int64_t k,
                                         const ops::GemmSettings& wish) {
  const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  const int64_t strips = up(n, kW4axRows), k_blocks = up(k, 128);
  const double memory = static_cast<double>(n) * static_cast<double>(k) * 0.5 / kW4axWeights;
  std::optional<W4axPlan> best;
  for (int size = 0; size < 4; ++size)
    for (int cluster = 1; cluster <= 2; ++cluster)
      for (int sharing = 0; sharing <= 1; ++sharing) {
        W4axPlan plan;
        plan.tiles = 2 << size, plan.cluster = cluster;
        const int64_t tiles = up(m, 8 * plan.tiles), units = multiprocessors / cluster;
        if (wish.tokens ? wish.tokens != 8 * plan.tiles : size > 0 && 8 * plan.tiles >= 2 * m) continue;
        // Of a pair without a second tile of tokens one block would rest.
        if (wish.cluster ? wish.cluster != cluster : cluster == 2 && tiles % 2 != 0) continue;
        plan.token_tiles = static_cast<int>(up(tiles, cluster));
        plan.items = static_cast<int>(strips * plan.token_tiles);
        const int bytes = w4ax_stage(plan.tiles).bytes, fixed = 1024 + 8 * 512;
        plan.stages = static_cast<int>(std::min<int64_t>(kW4axStages, (shared_per_block - fixed) / bytes));
        if (wish.stages) plan.stages = static_cast<int>(std::min<int64_t>(plan.stages, wish.stages));
        if (plan.stages < 2) continue;
        plan.shared_bytes = static_cast<unsigned>(fixed + plan.stages * bytes);
        const int64_t rest = plan.items % units;
        if (wish.shared < 0 && sharing == 1 && rest == 0) continue;
        if (wish.shared >= 0) plan.shared = static_cast<int>(std::min<int64_t>(wish.shared, plan.items));
        else plan.shared = sharing ? static_cast<int>(rest) : 0;
        // Every block has a step of the shared items at least: who waits for the others counts them.
        if (plan.shared > 0)
          plan.shared =
              static_cast<int>(std::min<int64_t>(plan.items, std::max<int64_t>(plan.shared, up(units, k_blocks))));
        plan.blocks =
            static_cast<int>(std::min<int64_t>(units, plan.shared > 0 ? plan.shared * k_blocks : plan.items)) * cluster;
        const double steps = static_cast<double>(up(plan.items - plan.shared, units) * k_blocks) +
                             static_cast<double>(plan.shared * k_blocks) / static_cast<double>(units);
        plan.microseconds = kW4axBegin + std::max(steps * kW4axStep[cluster - 1][size], memory) +
                            (plan.shared > 0 ? kW4axShare[size] : 0);
        if (!best || plan.microseconds < best->microseconds) best = plan;
      }
  return best;
}

}  // namespace lpq::cuda
