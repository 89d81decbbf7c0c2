#include "cuda/kernels/gemm_wide.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/kernels/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kMostStages = 16;  // kWideStages

struct WidePlan {
  int tiles = 2, stages = 4, warps = 4, blocks = 1;  // tiles: of eight tokens; warps that multiply
  unsigned shared = 0;
  WideArgs args{};
};

int warps_of(int tiles, int width) { return std::min(tiles <= 4 ? 16 : 8, static_cast<int>(div_up(width, 4)) * 4); }
// As the kernel lays a stage out.
int64_t stage_bytes(const GemmPackedArgs& a, int tiles, int width, int bits) {
  const int64_t scales = div_up(int64_t{width} * a.groups_per_block * 64, 128) * 128, zeros = int64_t{width} * a.groups_per_block * 32 * a.zero_kind;
  return div_up(int64_t{2048} * tiles + int64_t{width} * 512 * bits + scales + zeros, 1024) * 1024;
}

// Of all tiles and numbers of blocks that fit: those whose cycles are the least by this model of a multiprocessor, whose constants were fitted to
// 587 timings of u4 on an H200 (docs/kernels.md; what it chooses takes at most 1.11 and in the mean 1.004 times the best that
// was timed). A step's bytes come from L2 at kFromL2 a cycle (a strip's weights and its activations), of which the memory gives kMemory a
// cycle to all blocks together; a packed block takes a multiprocessor kBlock cycles for 16, 32, 64 tokens (two such blocks a warp: the
// second) and 128. Results leave at kStore bytes of sums a cycle; an item that blocks share costs kShare and its sums, written and read.
WidePlan choose_wide(const CudaExec& exec, const GemmPackedArgs& a, int bits, const Params& params) {
  constexpr double kFromL2 = 20.1, kMemory = 2238, kBegin = 7045, kShare = 4870, kSums = 26.5, kStore = 20.6;
  constexpr double kBlock[] = {54.6, 136.9, 132.3, 236.2, 342.1};
  const int64_t asked_tokens = params.integer("tokens", 0), asked_width = params.integer("width", 0), asked_stages = params.integer("stages", 0), asked_blocks = params.integer("blocks", 0);
  require(asked_tokens == 0 || asked_tokens == 16 || asked_tokens == 32 || asked_tokens == 64 || asked_tokens == 128, "tokens is not 16, 32, 64 or 128");
  require(asked_stages == 0 || (asked_stages >= 2 && asked_stages <= kMostStages), "stages is not between 2 and 16");
  // More blocks than run at once would wait for each other for ever.
  const int64_t running = exec.device().multiprocessors;
  require(asked_blocks >= 0 && asked_blocks <= running, "blocks is not between 1 and the number of multiprocessors");
  const int side_bytes = a.groups_per_block * (64 + 32 * a.zero_kind);
  WidePlan best;
  double least = -1;
  for (int tiles : {2, 4, 8, 16}) {
    if (asked_tokens ? asked_tokens != 8 * tiles : (8 * tiles < a.m && tiles < 8) || (tiles > 2 && 4 * tiles >= a.m)) continue;
    const int64_t token_tiles = div_up(a.m, 8 * tiles);
    for (int width = 1; width <= std::min(tiles == 16 ? 8 : 16, a.n_blocks); ++width) {
      // Warpgroups multiply whole.
      if (asked_width ? width != asked_width : width % 4 != 0 && width != a.n_blocks) continue;
      const int warps = warps_of(tiles, width);
      const int64_t stage = stage_bytes(a, tiles, width, bits), room = int64_t{exec.device().shared_per_block} - 1024 - warps * 512;
      const int64_t stages = std::min<int64_t>(asked_stages ? asked_stages : kMostStages, room / stage);
      if (stages < (asked_stages ? asked_stages : 3)) continue;
      const int64_t items = div_up(a.n_blocks, width) * token_tiles, total = items * a.k_blocks;
      const double weights = width * static_cast<double>(512 * bits + side_bytes), sums = width * tiles * 1024.0;
      const double block = kBlock[tiles == 2 ? 0 : tiles == 4 ? 1 : tiles == 16 ? 4 : width > 8 ? 3 : 2];
      const double bytes = (weights + 2048.0 * tiles) / kFromL2, multiply = 4.0 * static_cast<double>(div_up(width, 4)) * block;
      const int64_t most = std::min(total, running);
      for (int64_t blocks = asked_blocks ? std::min(asked_blocks, most) : most; blocks >= 1 && (asked_blocks || blocks >= most * 3 / 4); --blocks) {
        // Whole items; or each shared by as many blocks.
        const bool whole = items % blocks == 0, even = blocks % items == 0;
        if (!asked_blocks && blocks != most && !whole && !even) continue;
        const double steps = static_cast<double>(div_up(total, blocks)), memory = weights * static_cast<double>(blocks) / static_cast<double>(std::min(token_tiles, running)) / kMemory;
        const double store = static_cast<double>(div_up(items, blocks)) * sums / 2 / kStore;
        const double cost = kBegin + steps * std::max({bytes, memory, multiply}) + store + (whole ? 0 : (even ? 1 : 2) * sums * 2 / kSums + kShare);
        if (least < 0 || cost < least) {
          least = cost;
          best.tiles = tiles, best.stages = static_cast<int>(stages), best.warps = warps, best.blocks = static_cast<int>(blocks);
          best.shared = static_cast<unsigned>(1024 + stages * stage + warps * 512);
          best.args.width = width;
          best.args.token_tiles = static_cast<int>(token_tiles), best.args.items = static_cast<int>(items);
        }
        if (asked_blocks) break;
      }
    }
  }
  require(least >= 0, "no tiling of the wide kernel fits");
  return best;
}

PackedMaps wide_maps(const GemmPackedArgs& a, int bits, const WidePlan& plan) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint64_t rows = u64(a.n_blocks);
  const uint32_t width = u32(plan.args.width), groups = u32(a.groups_per_block);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMapShort, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128}, {64, u32(8 * plan.tiles), 2}, true);
  maps.weights = describe_boxes(a.weights, kMapWide, {64, u64(a.k_blocks) * u64(bits), rows}, {512, u64(a.k_blocks) * u64(bits) * 512}, {64, u32(bits), width}, false);
  maps.scales = describe_boxes(a.scales, kMapShort, {32, u64(a.groups), rows}, {64, u64(a.groups) * 64}, {32, groups, width}, false);
  if (a.zero_kind)
    maps.zeros = describe_boxes(a.zeros, a.zero_kind == 1 ? kMapByte : kMapShort, {32, u64(a.groups), rows}, {u64(32 * a.zero_kind), u64(a.groups) * u64(32 * a.zero_kind)},
                                {32, groups, width}, false);
  return maps;
}

// Whether f16 or bf16 hold code - zero times the cast's gain, and the cast's offset plus the zero point, exactly. f16: codes are
// multiples of 2^-24 times a power of two, so whole zero points of up to 2^10 cost nothing. bf16: 128 + code 2^s, of which at
// most 256 is held; zero points up to 2^bits stay below. Those of groups are bounded by 255 (+ 128) alone.
int zero_mode(const GemmPackedArgs& a, bool integer, int bits, bool bf16) {
  if (!integer) return kZeroNone;
  if (a.zero_kind == 2 || a.zero != std::floor(a.zero)) return kZeroSums;
  if (a.zero_kind == 1) return bf16 ? kZeroSums : kZeroOfGroups;
  return a.zero >= 0 && a.zero <= (bf16 ? static_cast<float>(1 << bits) : 1024.0f) ? kZeroConstant : kZeroSums;
}

}  // namespace

bool has_gemm_wide(CudaExec& exec, const std::string& name) { return exec.device().arch == 90 && exec.has_kernel(name + "_m2_o") && can_describe_tensors(); }

bool wide_pays(const GemmPackedArgs& a, const QuantType& type, bool bf16, int64_t tokens) {
  const bool integer = type.kind == QuantType::Kind::integer;
  return integer && type.bits == 4 && tokens > 8 && a.groups_per_block == 1 && zero_mode(a, integer, type.bits, bf16) != kZeroSums;
}

void gemm_wide(CudaExec& exec, const std::string& name, GemmPackedArgs a, int bits, bool bf16, const Params& params) {
  WidePlan plan = choose_wide(exec, a, bits, params);
  a.stages = plan.stages;
  plan.args.zero_mode = zero_mode(a, name.find("_int") != std::string::npos, bits, bf16);
  plan.args.vectors = a.n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  plan.args.overlap = params.integer("overlap", 0) != 0;
  std::optional<Scratch> sums;
  if (plan.args.zero_mode == kZeroSums) {
    const int pitch = plan.args.token_tiles * 8 * plan.tiles;
    sums.emplace(exec.scratch(static_cast<size_t>(a.k_blocks) * static_cast<size_t>(a.groups_per_block * pitch) * 4));
    float* to = sums->as<float>();
    exec.launch(bf16 ? "lpq_group_sums_bf16" : "lpq_group_sums_f16", {a.k_blocks, div_up(pitch, 8)}, {256}, 0, a.x, to, a.m, a.k, a.groups_per_block, pitch);
    plan.args.sums = to;
    plan.args.sums_pitch = pitch;
    plan.args.overlap = 0;  // the sums are read by all warps
  }
  std::optional<Scratch> partial;
  if (plan.args.items % plan.blocks != 0) {
    partial.emplace(exec.scratch(size_t{2} * static_cast<size_t>(plan.blocks * plan.args.width * plan.tiles) * 1024));
    a.partial = partial->as<float>();
    a.counters = exec.counters(size_t{2} * static_cast<size_t>(plan.args.items));
  }
  const bool one = a.groups_per_block == 1 && plan.args.zero_mode != kZeroSums;
  exec.launch_clusters(name + "_m" + std::to_string(plan.tiles) + (one ? "_o" : "_g"), {plan.blocks}, {32 * plan.warps + 128}, plan.shared, 1, plan.args.overlap != 0, a, plan.args,
                       wide_maps(a, bits, plan));
}

}  // namespace lpq::cuda
