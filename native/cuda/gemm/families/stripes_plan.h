// How products of MARLIN's and TurboMind's layouts are cut (stripes.cuh): plain arithmetic, which the host tests
// too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/gemm/families/stripes.h"
#include "ops/gemm.h"

namespace lpq::cuda {

// What decides a cut. Bytes: scales of a column and group; zero points of 64 columns and a group.
struct StripeProduct {
  int64_t m, n_pad, k_pad;
  int bits = 4, scale_bytes = 2, zero_bytes = 0;
  int group_shift = 7;   // log2 of the group's length
  bool channel = false;  // one scale a row
};

struct StripePlan {
  int tiles = 1, log_n = 2, log_k = 2, stages = 4, blocks = 1;
  unsigned shared = 0;           // bytes
  double microseconds = 0;       // by the estimate, in terms of an H200
  int64_t per = 0, sharers = 1;  // steps of the busiest block; blocks that share a column of tiles, at most
};

inline int64_t stripe_step(int log_k, int bits) { return int64_t{16} * sub_tiles(bits) << log_k; }

inline int64_t stripe_shared(const StripePlan& t, const StripeProduct& p) {
  const int64_t step = stripe_step(t.log_k, p.bits), rows = p.channel ? 1 : std::max<int64_t>(1, step >> p.group_shift);
  const int64_t x = std::max<int64_t>(1, step / 64) * int64_t{8 * t.tiles} * 128;
  const int64_t weights = int64_t{128} * p.bits * sub_tiles(p.bits) << (t.log_n + t.log_k);
  const int64_t stage =
      (x + weights + rows * ((int64_t{kTileColumns} * p.scale_bytes + p.zero_bytes) << t.log_n) + 127) / 128 * 128;
  // Sums of half of the warps along K, or of one.
  const int64_t given = int64_t{2048} * t.tiles * (std::max(1, 1 << t.log_k >> 1) << t.log_n);
  return t.stages * stage + given;
}

// The microseconds of a cut. TurboMind's dispatcher ranks tiles and splits of K by the volume of a block times the
// whole waves of blocks (its kernels/gemm/kernel.cu, EstimateSplits). Stripes split K evenly whatever the tile, so that
// there is one wave; three things remain:
//  - the bytes that the busiest block streams, codes and activations, at 30 KB a microsecond (4 TB/s over 132
//    multiprocessors);
//  - the columns of tiles that it ends, each with a reduction over its warps along K and stores of y;
//  - the blocks that share a column, of which each adds to the sums of the one below.
inline void estimate_stripes(StripePlan& t, const StripeProduct& p) {
  const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  const int64_t strips = up(p.n_pad, int64_t{kTileColumns} << t.log_n), step = stripe_step(t.log_k, p.bits),
                steps = up(p.k_pad, step);
  const int64_t columns = strips * up(p.m, 8 * t.tiles);
  t.per = up(columns * steps, t.blocks);
  t.sharers = t.per % steps == 0 ? 1 : steps % t.per == 0 ? steps / t.per : (steps - 2) / t.per + 2;
  const double bytes = static_cast<double>((int64_t{128} * p.bits * sub_tiles(p.bits) << (t.log_n + t.log_k)) +
                                           std::min<int64_t>(p.m, 8 * t.tiles) * step);
  const double ends = static_cast<double>(t.per) / static_cast<double>(steps) + (t.per % steps ? 1 : 0);
  t.microseconds = static_cast<double>(t.per) * bytes / 30e3 + ends * (0.4 + 0.1 * t.tiles + 0.25 * t.log_k) +
                   static_cast<double>(t.sharers - 1) * (1.2 + 0.2 * t.tiles);
}

// The cut of a product on a device: the heuristics of gemm_turbomind and gemm_marlin, whole.
//  - Tokens of a tile: the least of 8, 16, 32 and 64 that hold m; more tokens are batches of 64, as if W were repeated.
//  - Warps, of 64 columns each: 16, or 8 from 17 tokens on, whose sums fit 128 and 255 registers. How many of them
//    stand along N and how many split K: the least of estimate_stripes. Fewer split K where two stages of such long
//    steps do not fit shared memory.
//  - Blocks: one a multiprocessor. More would wait for each other for ever, since a block waits for the one below.
//  - Stages: as many of four as fit.
// Null where no cut has what is wished for and fits.
inline std::optional<StripePlan> plan_stripes(int multiprocessors, int64_t shared_per_block, const StripeProduct& p,
                                              const ops::GemmSettings& wish = {}) {
  const auto power = [](int64_t v) { return v > 0 && (v & (v - 1)) == 0; };
  StripePlan base;
  base.tiles = p.m <= 8 ? 1 : p.m <= 16 ? 2 : p.m <= 32 ? 4 : 8;
  const int most = base.tiles <= 2 ? 4 : 3;
  const int64_t blocks = wish.blocks ? wish.blocks : multiprocessors;
  if (blocks < 1 || blocks > multiprocessors) return std::nullopt;
  if ((wish.warps_n && !power(wish.warps_n)) || (wish.warps_k && !power(wish.warps_k)) ||
      (wish.stages && (wish.stages < 2 || wish.stages > 4)))
    return std::nullopt;
  base.blocks = static_cast<int>(blocks);
  std::optional<StripePlan> best;
  for (int log_n = 0; log_n <= most; ++log_n) {
    if (wish.warps_n && wish.warps_n != int64_t{1} << log_n) continue;
    StripePlan t = base;
    t.log_n = log_n, t.log_k = most - log_n, t.stages = wish.stages ? static_cast<int>(wish.stages) : 2;
    while (t.log_k > 0 && wish.warps_k && wish.warps_k < int64_t{1} << t.log_k) --t.log_k;
    if (wish.warps_k && wish.warps_k != int64_t{1} << t.log_k) continue;
    while (!wish.warps_k && t.log_k > 0 && stripe_shared(t, p) > shared_per_block) --t.log_k;
    if (stripe_shared(t, p) > shared_per_block) continue;
    estimate_stripes(t, p);
    if (!best || t.microseconds < best->microseconds) best = t;
  }
  if (!best) return std::nullopt;
  if (!wish.stages) {
    best->stages = 4;
    while (best->stages > 2 && stripe_shared(*best, p) > shared_per_block) --best->stages;
  }
  best->shared = static_cast<unsigned>(stripe_shared(*best, p));
  return best;
}

}  // namespace lpq::cuda
