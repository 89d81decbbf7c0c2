#include "cuda/kernels/gemm_wide.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "cuda/kernels/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kMostStages = 16;  // kWideStages

struct WidePlan {
  std::string kernel;
  int tiles = 2, stages = 4, warps = 4, clusters = 1;  // tiles: of eight tokens; warps that multiply
  unsigned shared = 0;
  WideArgs args{};
};

int warps_of(int tiles, int width) { return std::min(tiles <= 4 ? 16 : 8, static_cast<int>(div_up(width, 4)) * 4); }
int64_t stage_bytes(int tiles, int width, int bits, int side_bytes) { return div_up(int64_t{2048} * tiles + int64_t{width} * (512 * bits + side_bytes), 1024) * 1024; }

// Clusters that the device holds at once; the driver is asked once for each.
int resident(CudaExec& exec, const std::string& kernel, int threads, int cluster) {
  if (cluster == 1) return exec.device().multiprocessors;
  static std::mutex lock;
  static std::map<std::tuple<CUcontext, std::string, int, int>, int> known;
  const std::lock_guard<std::mutex> hold(lock);
  const auto [at, is_new] = known.try_emplace({exec.context(), kernel, threads, cluster}, 0);
  if (is_new) at->second = exec.resident_clusters(kernel, threads, static_cast<unsigned>(exec.device().shared_per_block), cluster);
  return at->second;
}

// Of all tiles that fit: those whose cycles are the least by this model of a multiprocessor. Bytes come from L2 at kFromL2 a cycle
// (a strip's weights and its share of the activations), of which the memory gives kMemory a cycle to all; the tensor core
// takes 16 cycles a packed block and eight tokens, casts and all else kIssue; what begins and ends an item is kBegin, and adding up slices kSlices and
// the bytes of the sums.
WidePlan choose_wide(CudaExec& exec, const std::string& name, const GemmPackedArgs& a, int bits, int side_bytes, const Params& params) {
  constexpr double kFromL2 = 27, kMemory = 2400, kIssue = 66, kBegin = 1800, kSlices = 1800;
  const int64_t asked_tokens = params.integer("tokens", 0), asked_width = params.integer("width", 0), asked_fan = params.integer("fan", 0);
  const int64_t asked_slices = params.integer("slices", 0), asked_stages = params.integer("stages", 0), asked_blocks = params.integer("blocks", 0);
  require(asked_tokens == 0 || asked_tokens == 16 || asked_tokens == 32 || asked_tokens == 64 || asked_tokens == 128, "tokens is not 16, 32, 64 or 128");
  require(asked_fan == 0 || asked_fan == 1 || asked_fan == 2 || asked_fan == 4, "fan is not 1, 2 or 4");
  require(asked_stages == 0 || (asked_stages >= 2 && asked_stages <= kMostStages), "stages is not between 2 and 16");
  WidePlan best;
  double least = -1;
  for (int tiles : {2, 4, 8, 16}) {
    if (asked_tokens ? asked_tokens != 8 * tiles : (8 * tiles < a.m && tiles < 8) || (tiles > 2 && 4 * tiles >= a.m)) continue;
    const std::string kernel = name + "_m" + std::to_string(tiles);
    const int64_t token_tiles = div_up(a.m, 8 * tiles);
    for (int width = 1; width <= std::min(tiles == 16 ? 8 : 16, a.n_blocks); ++width) {
      if (asked_width && width != asked_width) continue;
      const int warps = warps_of(tiles, width);
      const int64_t stage = stage_bytes(tiles, width, bits, side_bytes), room = int64_t{exec.device().shared_per_block} - 1024 - warps * 512;
      const int64_t stages = std::min<int64_t>(asked_stages ? asked_stages : kMostStages, room / stage);
      if (stages < (asked_stages ? asked_stages : 3)) continue;
      const int64_t strips = div_up(a.n_blocks, width);
      for (int fan : {1, 2, 4}) {
        if ((asked_fan && fan != asked_fan) || (!asked_fan && fan > strips)) continue;
        for (int slices = 1; slices * fan <= 8 && slices <= a.k_blocks; ++slices) {
          if (asked_slices && slices != asked_slices) continue;
          if (slices > 1 && int64_t{width} * tiles * 1024 > stages * stage) continue;
          const int running = resident(exec, kernel, 32 * warps + 128, fan * slices);
          if (running < 1) continue;
          const int64_t items = div_up(strips, fan) * token_tiles, waves = div_up(items, running);
          const double blocks = static_cast<double>(std::min<int64_t>(items, running)) * fan * slices;
          const double steps = static_cast<double>(div_up(a.k_blocks, slices)), weights = width * static_cast<double>(512 * bits + side_bytes);
          const double bytes = (weights + 2048.0 * tiles / fan) / kFromL2;
          const double memory = weights * blocks / static_cast<double>(std::min<int64_t>(token_tiles, running)) / kMemory;
          const double rows = 4.0 * static_cast<double>(div_up(width, 4)), multiply = rows * std::max(16.0 * tiles * 1.05, kIssue);
          const double sums = width * tiles * 1024.0;
          const double ends = kBegin + (slices > 1 ? kSlices + sums / 20 : sums / 2 / 40);
          const double cost = static_cast<double>(waves) * (steps * std::max({bytes, memory, multiply}) + ends);
          if (least >= 0 && cost >= least) continue;
          least = cost;
          best.kernel = kernel;
          best.tiles = tiles, best.stages = static_cast<int>(stages), best.warps = warps;
          best.clusters = static_cast<int>(slices > 1 ? items : std::min<int64_t>(items, running));
          best.shared = static_cast<unsigned>(1024 + stages * stage + warps * 512);
          best.args.width = width, best.args.fan = fan, best.args.slices = slices;
          best.args.token_tiles = static_cast<int>(token_tiles), best.args.items = static_cast<int>(items);
        }
      }
    }
  }
  require(least >= 0, "no tiling of the wide kernel fits");
  if (asked_blocks && best.args.slices == 1) best.clusters = static_cast<int>(std::clamp<int64_t>(asked_blocks / best.args.fan, 1, best.clusters));
  return best;
}

PackedMaps wide_maps(const GemmPackedArgs& a, int bits, const WidePlan& plan) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint64_t rows = u64(a.n_blocks);
  const int fan = plan.args.fan;
  const uint32_t width = u32(plan.args.width), groups = u32(a.groups_per_block);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMapShort, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128}, {64, u32(8 * plan.tiles / std::max(1, fan / 2)), fan == 1 ? 2u : 1u}, true);
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

bool has_gemm_wide(CudaExec& exec, const std::string& name) { return exec.device().arch == 90 && exec.has_kernel(name + "_m2") && can_describe_tensors(); }

void gemm_wide(CudaExec& exec, const std::string& name, GemmPackedArgs a, int bits, bool bf16, const Params& params) {
  const int side_bytes = a.groups_per_block * (64 + 32 * a.zero_kind);
  WidePlan plan = choose_wide(exec, name, a, bits, side_bytes, params);
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
  const int cluster = plan.args.fan * plan.args.slices;
  exec.launch_clusters(plan.kernel, {plan.clusters * cluster}, {32 * plan.warps + 128}, plan.shared, cluster, plan.args.overlap != 0, a, plan.args, wide_maps(a, bits, plan));
}

}  // namespace lpq::cuda
