// How the wide kernel (wide.cuh) cuts a product: plain functions, which the host's test of the kernel uses, too.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/tensor_maps.h"
#include "ops/gemm.h"

namespace lpq::cuda {

constexpr int kMostWideStages = 16;  // kWideStages

inline int64_t plan_div_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Throws Failure("LPQ_NATIVE_ARGUMENT") for what no kernel has.
inline void require_wide(const ops::GemmSettings& wish, int multiprocessors) {
  require(wish.stages == 0 || (wish.stages >= 2 && wish.stages <= kMostWideStages), "stages is not between 2 and 16");
  require(wish.blocks <= multiprocessors, "blocks is not between 1 and the number of multiprocessors");
}

struct WidePlan {
  int tiles = 2, stages = 4, warps = 4, blocks = 1;  // tiles: of eight tokens; warps that multiply
  unsigned shared = 0;
  double cycles = 0;  // as predicted
  WideArgs args{};
};
constexpr double kWideClock = 1980;  // cycles a microsecond, at most: an H200 under load runs slower

inline int wide_warps(int tiles, int width) {
  return std::min(tiles <= 4 ? 16 : 8, static_cast<int>(plan_div_up(width, 4)) * 4);
}
// As the kernel lays a stage out.
inline int64_t wide_stage_bytes(const GemmPackedArgs& a, int tiles, int width, int bits) {
  const int64_t scales = plan_div_up(int64_t{width} * a.groups_per_block * 64, 128) * 128,
                zeros = int64_t{width} * a.groups_per_block * 32 * a.zero_kind;
  return plan_div_up(int64_t{2048} * tiles + int64_t{width} * 512 * bits + scales + zeros, 1024) * 1024;
}

// The cycles of a multiprocessor, by a model whose constants were fitted to 587 timings of u4 on an H200
// (docs/internals/kernels/wide.md) and set to an H100's rates, 1.19 times as slow. A step's bytes come from L2 at
// kFromL2 a cycle, a strip's weights and its activations; a packed block takes kBlock cycles for 16, 32, 64 tokens (two
// such blocks a warp: the second) and 128; an item that blocks share costs kShare and its sums, written and read at
// kSums bytes a cycle.
struct WideCycles {
  static constexpr double kFromL2 = 16.9, kShare = 5795, kSums = 22.3;
  static constexpr double kBlock[] = {65.0, 162.9, 157.4, 281.1, 407.1};
  double weights, sums, read, multiply;  // bytes of a step's weights, of an item's sums; cycles of a step

  WideCycles(const GemmPackedArgs& a, int bits, int tiles, int width)
      : weights(width * static_cast<double>(512 * bits + a.groups_per_block * (64 + 32 * a.zero_kind))),
        sums(width * tiles * 1024.0),
        read((weights + 2048.0 * tiles) / kFromL2),
        multiply(4.0 * static_cast<double>(plan_div_up(width, 4)) *
                 kBlock[tiles == 2    ? 0
                        : tiles == 4  ? 1
                        : tiles == 16 ? 4
                        : width > 8   ? 3
                                      : 2]) {}
  double step() const { return std::max(read, multiply); }
  // To share an item once: where blocks share those at both ends of their runs, twice the sums.
  double share(int ends) const { return ends * sums * 2 / kSums + kShare; }
};

// Of all tiles and numbers of blocks that fit, those whose cycles are the least by that model: what it chooses takes at
// most 1.11 and in the mean 1.004 times the best that was timed. The memory gives kMemory bytes a cycle to all blocks
// together, results leave at kStore bytes of sums a cycle.
inline std::optional<WidePlan> choose_wide(int multiprocessors, int64_t shared_per_block, const GemmPackedArgs& a,
                                           int bits, const ops::GemmSettings& wish = {}) {
  constexpr double kMemory = 1881, kBegin = 4424, kStore = 17.3;
  const int64_t running = multiprocessors;  // more blocks than run at once would wait for each other for ever
  std::optional<WidePlan> best;
  for (int tiles : {2, 4, 8, 16}) {
    if (wish.tokens ? wish.tokens != 8 * tiles : (8 * tiles < a.m && tiles < 8) || (tiles > 2 && 4 * tiles >= a.m))
      continue;
    const int64_t token_tiles = plan_div_up(a.m, 8 * tiles);
    for (int width = 1; width <= std::min(tiles == 16 ? 8 : 16, a.n_blocks); ++width) {
      // Warpgroups multiply whole.
      if (wish.width ? width != wish.width : width % 4 != 0 && width != a.n_blocks) continue;
      const int warps = wide_warps(tiles, width);
      const int64_t stage = wide_stage_bytes(a, tiles, width, bits), room = shared_per_block - 1024 - warps * 512;
      const int64_t stages = std::min<int64_t>(wish.stages ? wish.stages : kMostWideStages, room / stage);
      if (stages < (wish.stages ? wish.stages : 3)) continue;
      const int64_t items = plan_div_up(a.n_blocks, width) * token_tiles, total = items * a.k_blocks;
      const WideCycles cycles(a, bits, tiles, width);
      const int64_t most = std::min(total, running);
      for (int64_t blocks = wish.blocks ? std::min<int64_t>(wish.blocks, most) : most;
           blocks >= 1 && (wish.blocks || blocks >= std::min(most * 3 / 4, items)); --blocks) {
        // Whole items; or each shared by as many blocks.
        const bool whole = items % blocks == 0, even = blocks % items == 0;
        if (!wish.blocks && blocks != most && !even && (!whole || blocks < most * 3 / 4)) continue;
        const double steps = static_cast<double>(plan_div_up(total, blocks)),
                     memory = cycles.weights * static_cast<double>(blocks) /
                              static_cast<double>(std::min(token_tiles, running)) / kMemory;
        const double store = static_cast<double>(plan_div_up(items, blocks)) * cycles.sums / 2 / kStore;
        const double cost =
            kBegin + steps * std::max(cycles.step(), memory) + store + (whole ? 0 : cycles.share(even ? 1 : 2));
        if (!best || cost < best->cycles) {
          best = WidePlan{tiles, static_cast<int>(stages), warps, static_cast<int>(blocks)};
          best->shared = static_cast<unsigned>(1024 + stages * stage + warps * 512), best->cycles = cost;
          best->args.width = width;
          best->args.token_tiles = static_cast<int>(token_tiles), best->args.items = static_cast<int>(items);
        }
        if (wish.blocks) break;
      }
    }
  }
  return best;
}

inline PackedMaps wide_maps(const GemmPackedArgs& a, int bits, const WidePlan& plan) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint64_t rows = u64(a.n_blocks);
  const uint32_t width = u32(plan.args.width), groups = u32(a.groups_per_block);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMap16, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128}, {64, u32(8 * plan.tiles), 2},
                          true);
  maps.weights = describe_boxes(a.weights, kMap64, {64, u64(a.k_blocks) * u64(bits), rows},
                                {512, u64(a.k_blocks) * u64(bits) * 512}, {64, u32(bits), width}, false);
  maps.scales =
      describe_boxes(a.scales, kMap16, {32, u64(a.groups), rows}, {64, u64(a.groups) * 64}, {32, groups, width}, false);
  if (a.zero_kind)
    maps.zeros =
        describe_boxes(a.zeros, a.zero_kind == 1 ? kMap8 : kMap16, {32, u64(a.groups), rows},
                       {u64(32 * a.zero_kind), u64(a.groups) * u64(32 * a.zero_kind)}, {32, groups, width}, false);
  return maps;
}

// Whether f16 or bf16 hold code - zero times the cast's gain, and the cast's offset plus the zero point, exactly. f16:
// codes are multiples of 2^-24 times a power of two, so whole zero points of up to 2^10 cost nothing. bf16: 128 + code
// 2^s, of which at most 256 is held; zero points up to 2^bits stay below. Those of groups are bounded by 255 (+ 128)
// alone.
inline int wide_zero_mode(const GemmPackedArgs& a, bool integer, int bits, bool bf16) {
  if (!integer) return kZeroNone;
  if (a.zero_kind == 2 || a.zero != std::floor(a.zero)) return kZeroSums;
  if (a.zero_kind == 1) return bf16 ? kZeroSums : kZeroOfGroups;
  return a.zero >= 0 && a.zero <= (bf16 ? static_cast<float>(1 << bits) : 1024.0f) ? kZeroConstant : kZeroSums;
}

}  // namespace lpq::cuda
