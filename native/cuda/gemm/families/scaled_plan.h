// How the kernel of scaled weights (scaled.cuh) cuts a product: plain functions, which the host's test of the
// kernel uses, too.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/gemm/families/scaled.h"
#include "cuda/gemm/families/wide_plan.h"

namespace lpq::cuda {

// An instance of the kernel: T eights of tokens, P 16-row halves a warp, G pairs of warpgroups; and, in
// nanoseconds with u4, what a block takes to begin, and a packed block of K of a tile: by itself, more where all
// multiprocessors are busy, and where each has two such blocks.
struct ScaledForm {
  int tiles, halves, pairs;
  double begin, step, busy, second = 0;
  int width() const { return 4 * halves * pairs; }  // packed blocks of a strip
  std::string name() const {
    return std::to_string(tiles) + "x" + std::to_string(halves) + "x" + std::to_string(pairs);
  }
};
constexpr ScaledForm kScaledForms[] = {
    {4, 1, 2, 2098, 719, 182},     {8, 1, 2, 2904, 790, 254},      {12, 1, 2, 3965, 855, 366},
    {4, 1, 1, 1990, 506, 64, 324}, {8, 1, 1, 2649, 517, 104, 427}, {12, 1, 1, 3100, 531, 190},
    {16, 2, 1, 4661, 1030, 440},   {16, 1, 1, 2866, 616, 183},     {20, 1, 1, 3748, 650, 257},
    {24, 1, 1, 3876, 735, 300},    {32, 1, 1, 4419, 979, 487}};

struct ScaledPlan {
  ScaledForm form = kScaledForms[0];
  int stages = 3, blocks = 1;
  unsigned shared = 0;
  double nanoseconds = 0;  // as predicted
  ScaledArgs args{};
};

// Weights as pairs lose their zero points in one step: a constant whole one that f16 or bf16 hold beside the code.
inline bool scaled_constant(const GemmPackedArgs& a, bool integer, int bits, bool bf16) {
  return !integer || (a.zero_kind == 0 && a.zero == std::floor(a.zero) && a.zero >= 0 &&
                      a.zero <= (bf16 ? static_cast<float>(1 << bits) : 1023.0f));
}

// As the kernel lays a stage of packed blocks out.
inline int64_t scaled_stage_bytes(const GemmPackedArgs& a, int width, int bits) {
  const int64_t scales = plan_div_up(int64_t{width} * a.groups_per_block * 64, 128) * 128,
                zeros = int64_t{width} * a.groups_per_block * 32 * a.zero_kind;
  return plan_div_up(int64_t{width} * 512 * bits + scales + zeros, 128) * 128;
}

inline std::string scaled_cut_in_words(const ScaledPlan& cut) {
  return "tiles of " + std::to_string(8 * cut.form.tiles) + " tokens and " + std::to_string(32 * cut.form.width()) +
         " rows, " + std::to_string(cut.args.items) + " items, of which " + std::to_string(cut.args.shared_items) +
         " are cut along K" + (cut.args.cluster ? ", by the blocks of a cluster" : "");
}

// Stages of packed blocks and slabs of 64 k of activations that fit: three stages and as many activations; where those
// do not fit, less of both, and where more do, more. `slab`: bytes of one, `slabs` of them a packed block of K;
// `wished`: stages, or 0. Fewer than two slabs: nothing fits.
struct ScaledStages {
  int64_t stages = 0, slabs = 0;
};
inline ScaledStages fit_stages(int64_t room, int64_t stage, int64_t slab, int slabs, int64_t wished) {
  ScaledStages fit;
  for (int64_t n : {8, 6, 4, 3, 2}) {
    if (wished && n != std::min<int64_t>(wished, 4)) continue;
    fit.stages = wished ? wished : n;
    fit.slabs =
        std::min<int64_t>((room - fit.stages * stage) / slab, std::min<int64_t>(slabs * fit.stages, kMostScaledSlabs));
    if (fit.slabs >= slabs * fit.stages - 1 || n == 2 || wished) break;
  }
  if (fit.stages > kMostScaledStages) fit.slabs = 0;
  return fit;
}

// A product to be cut: tokens, packed blocks of rows and of K, and slabs of activations a packed block of K; whether
// these have scales of tokens besides.
struct CutProblem {
  int64_t m, n_blocks, k_blocks;
  int slabs;
  bool token_scales = false;
};
// Nanoseconds that a cut costs besides steps: a launch that fills the device; to share an item through the workspace,
// in a cluster, and by owners, whose blocks do not share what they read in L2: for a step, by 1024 packed blocks and
// tokens.
struct CutCosts {
  double full, meet, each, keep, add, cluster, cluster_each, cluster_send, cluster_add, owned, owned_keep, owned_add,
      owned_run;
};

// Of the forms that `has` knows and the ways to cut the work, the one that should end first. The constants, nanoseconds
// of an H100, were fitted to timings of every form and cut on 37 shapes and 17 to 1024 tokens
// (docs/internals/kernels/scaled.md says how far the choice is from the best on others). A launch that leaves half of
// the device's places empty begins sooner, beside the end of the one before. To share an item costs: to meet, for each
// that is waited for, and to write sums (by 128 KB) and read those of the others that a block adds up; in a cluster, by
// bytes between multiprocessors; with owners, the others' sums whole.
// `clusters`(form, blocks): how many clusters of so many blocks run at once.
template <class Forms, class StageBytes, class Has, class Clusters>
std::optional<ScaledPlan> choose_cut(int multiprocessors, int64_t shared_per_block, const CutProblem& a,
                                     const Forms& forms, const CutCosts& cost, const StageBytes& stage_bytes,
                                     const ops::GemmSettings& wish, const Has& has, const Clusters& clusters) {
  std::optional<ScaledPlan> best;
  for (const ScaledForm& form : forms) {
    const int width = form.width();
    if (form.tiles == 0) break;  // a kind with fewer forms than others
    if ((wish.tokens && wish.tokens != 8 * form.tiles) || (wish.width && wish.width != width) || !has(form)) continue;
    const int64_t slab = int64_t{1024} * form.tiles, scales = a.token_scales ? scaled_token_bytes(form.tiles) : 0,
                  stage = stage_bytes(width), staging = int64_t{8} * form.pairs * kScaledStaging;
    // A multiprocessor has 1024 bytes more than a block may take, and keeps 1024 a block.
    const int residents = scaled_residents(form.tiles, form.halves, form.pairs);
    const int64_t room = (shared_per_block + 1024) / residents - 1024 - 1024 - staging,
                  at_once = int64_t{multiprocessors} * residents;
    const int64_t strips = plan_div_up(a.n_blocks, width), token_tiles = plan_div_up(a.m, 8 * form.tiles),
                  items = strips * token_tiles;
    const int64_t tokens = std::min<int64_t>(8 * form.tiles, plan_div_up(a.m, 8) * 8);
    const double size = static_cast<double>(tokens) * width / 1024;  // of 128 KB of sums
    const auto consider = [&](int64_t blocks, int64_t shared_items, int64_t shared_blocks, bool owners,
                              int64_t cluster) {
      const int64_t received =
          cluster ? ScaledShares(form.tiles, form.halves, static_cast<int>(cluster)).room(8 * form.pairs) : 0;
      const auto [stages, slabs] = fit_stages(room - received, stage, slab + scales, a.slabs, wish.stages);
      if (slabs < 2) return;
      const int64_t waves = plan_div_up(items - shared_items, blocks),
                    run = shared_items ? plan_div_up(shared_items * a.k_blocks, shared_blocks) : 0;
      const double busy = static_cast<double>(blocks) / multiprocessors;
      double time = form.begin + (2 * blocks > at_once ? cost.full : 0) +
                    static_cast<double>(waves * a.k_blocks + run) *
                        (form.step + form.busy * std::min(1.0, busy) + (busy > 1 ? form.second : 0));
      if (shared_items > 0) {
        const ScaledShares shares(form.tiles, form.halves, static_cast<int>(plan_div_up(shared_blocks, shared_items)));
        const double each = shares.blocks, others = each - 1,
                     share = static_cast<double>(shares.most()) / shares.units / shares.ways;
        time += cluster  ? cost.cluster + cost.cluster_each * each +
                               size * others * (cost.cluster_send / each + cost.cluster_add * share)
                : owners ? cost.owned + size * (cost.owned_keep + cost.owned_add * others) +
                               cost.owned_run * static_cast<double>(run) * width * form.tiles / 128
                         : cost.meet + cost.each * each + size * (cost.keep + cost.add * others * share);
      }
      if (best && time >= best->nanoseconds) return;
      best.emplace();
      best->form = form, best->stages = static_cast<int>(stages), best->blocks = static_cast<int>(blocks);
      best->shared = static_cast<unsigned>(1024 + slabs * (slab + scales) + stages * stage + staging + received);
      best->nanoseconds = time;
      ScaledArgs& to = best->args;
      to.slabs = static_cast<int>(slabs), to.rows = static_cast<int>(tokens), to.strips = static_cast<int>(strips),
      to.token_tiles = static_cast<int>(token_tiles);
      // Boxes of scales begin at multiples of 16 bytes.
      to.last_token = static_cast<int>(std::max<int64_t>(0, a.m - tokens));
      if (a.token_scales) to.last_token = (to.last_token + 3) / 4 * 4;
      to.together = static_cast<int>(std::min<int64_t>(token_tiles, std::max(1, 128 / form.tiles))),
      to.items = static_cast<int>(items);
      to.shared_items = static_cast<int>(shared_items),
      to.shared_blocks = static_cast<int>(shared_items ? shared_blocks : 1), to.owners = owners,
      to.cluster = static_cast<int>(cluster), to.staging_at = static_cast<int>(1024 + slabs * slab + stages * stage),
      to.received_at = static_cast<int>(to.staging_at + staging),
      to.scales_at = static_cast<int>(to.received_at + received);
    };
    const int64_t most = std::min<int64_t>(at_once, items * a.k_blocks),
                  all = wish.blocks ? std::min<int64_t>(wish.blocks, most) : most, rest = items % all;
    const bool by_workspace = wish.reduce != "cluster";
    if (wish.reduce != "global")
      for (int64_t cluster = 2; cluster <= std::min<int64_t>(kMostScaledCluster, a.k_blocks); ++cluster) {
        if (wish.blocks ? wish.blocks != cluster * items : cluster * items > at_once) continue;
        if (items <= clusters(form, static_cast<int>(cluster)))
          consider(cluster * items, items, cluster * items, false, cluster);
      }
    if (!by_workspace) continue;
    if (!wish.blocks || rest == 0) consider(std::min(items, all), 0, 1, false, 0);
    if (rest == 0) continue;
    // Shared evenly by as many blocks as there are, or fewer: then half of the places may stay empty.
    const int64_t sharers = std::min(all / rest, int64_t{a.k_blocks}), runs = std::min(all, rest * a.k_blocks);
    const bool even = sharers > 1 && (!wish.blocks || runs == sharers * rest);
    for (int64_t each = even && wish.blocks ? sharers : 2; even && each <= sharers; ++each)
      consider(items < all ? each * rest : all, rest, each * rest, false, 0);
    // Equal runs, of no more than three blocks an item (the one that begins it adds up).
    if (wish.blocks ? !even : runs > rest && 2 * (rest * a.k_blocks / runs) >= a.k_blocks)
      consider(all, rest, runs, true, 0);
  }
  return best;
}

template <class Has, class Clusters>
std::optional<ScaledPlan> choose_scaled(int multiprocessors, int64_t shared_per_block, const GemmPackedArgs& a,
                                        int bits, const ops::GemmSettings& wish, const Has& has,
                                        const Clusters& clusters) {
  constexpr CutCosts kCosts = {427, 1291, 426, 1379, 47, 602, 300, 4573, 1165, 3981, 1179, 1640, 0};
  return choose_cut(
      multiprocessors, shared_per_block, {a.m, a.n_blocks, a.k_blocks, 2}, kScaledForms, kCosts,
      [&](int width) { return scaled_stage_bytes(a, width, bits); }, wish, has, clusters);
}

inline PackedMaps scaled_maps(const GemmPackedArgs& a, int bits, const ScaledPlan& plan) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  WidePlan boxes;
  boxes.tiles = plan.form.tiles, boxes.args.width = plan.form.width();
  PackedMaps maps = wide_maps(a, bits, boxes);
  maps.x = describe_boxes(a.x, kMap16, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, static_cast<uint32_t>(plan.args.rows), 1}, true);
  return maps;
}

}  // namespace lpq::cuda
