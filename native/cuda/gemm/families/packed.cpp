// gemm_packed (native/ops.ts): checks, the choice of tiles, launches.
#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "cuda/gemm/families/large_launch.h"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/families/stream.h"
#include "cuda/gemm/families/wide.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/gemm/tuning.h"
#include "cuda/launch.h"
#include "lpq/quant_type.h"

namespace lpq::cuda {
namespace {

constexpr int kMostTokens = 64;
constexpr int kMostExactTokens = 16;  // of devices whose kernel of many tokens rounds weights (large.cuh)

struct Tiling {
  bool hopper = false;  // which of the two kernels
  int tiles = 1;        // of eight tokens
  int warps_n = 8, warps_k = 1, stages = 4, blocks = 1;
  unsigned shared = 0;
};

// `side_bytes`: scales and zero points of a packed block.
int64_t shared_bytes(const Tiling& t, int bits, int side_bytes) {
  const int64_t warps = int64_t{t.warps_n} * t.warps_k;
  const int64_t stage =
      div_up(int64_t{8} * t.tiles * t.warps_k * kBlockK * 2 + warps * (512 * bits + side_bytes), 1024) * 1024;
  const int64_t sums = int64_t{t.hopper ? t.stages : 2} * t.warps_k * 128 * t.tiles;
  const int64_t exchange = int64_t{t.warps_k / 2} * t.warps_n * t.tiles * 1024;
  return 1024 + t.stages * stage + sums + exchange;
}

// How a product is cut, for `m` <= 64 tokens; measured in docs/kernels.md.
//  - token tiles: the least of 1, 2, 4, 8 eights that hold m;
//  - warps: 16 where their registers do (up to 16 tokens; Hopper 32), else 8. Eight along N, so that a stage of
//    activations serves 256 columns, the rest along K; fewer along N only where N is smaller;
//  - stages: what shared memory holds, up to 8; four on Hopper, more do not help;
//  - on Hopper, where a multiprocessor has fewer than three steps to do, steps half as large;
//  - blocks: one a multiprocessor, or one a step where there are fewer steps.
Tiling choose(int64_t m, int64_t n_blocks, int64_t k_blocks, int bits, int side_bytes, bool hopper,
              const DeviceFacts& device, const Params& params) {
  Tiling t;
  t.hopper = hopper;
  t.tiles = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8;
  const int warps = t.tiles <= 2 || (hopper && t.tiles == 4) ? 16 : 8, most = 8, wanted = hopper ? 4 : 8;
  t.warps_n = 8;
  if (hopper && t.tiles <= 4 && div_up(n_blocks, 8) * div_up(k_blocks, 2) < 3 * device.multiprocessors) t.warps_n = 4;
  while (t.warps_n > 4 && t.warps_n / 2 >= n_blocks) t.warps_n /= 2;
  t.warps_n = static_cast<int>(params.integer("warpsN", t.warps_n));
  require(t.warps_n == 4 || t.warps_n == 8 || t.warps_n == 16, "warpsN is not 4, 8 or 16");
  t.warps_k = std::max(1, hopper && t.tiles <= 4 ? 2 : warps / t.warps_n);
  while (t.warps_k > 1 && t.warps_k / 2 >= k_blocks) t.warps_k /= 2;
  t.warps_k = static_cast<int>(params.integer("warpsK", t.warps_k));
  require(t.warps_k >= 1 && t.warps_n * t.warps_k <= warps && (t.warps_k & (t.warps_k - 1)) == 0,
          "warpsN and warpsK do not fit the kernel");
  const auto fits = [&](int stages) {
    Tiling with = t;
    with.stages = stages;
    return shared_bytes(with, bits, side_bytes) <= device.shared_per_block;
  };
  while (t.warps_k > 1 && !fits(3)) t.warps_k /= 2;
  while (t.warps_n > 4 && !fits(3)) t.warps_n /= 2;
  t.stages = wanted;
  while (t.stages > 3 && !fits(t.stages)) --t.stages;
  t.stages = static_cast<int>(params.integer("stages", t.stages));
  require(t.stages >= 3 && t.stages <= most && fits(t.stages), "stages do not fit shared memory");
  t.shared = static_cast<unsigned>(shared_bytes(t, bits, side_bytes));
  const int64_t steps = div_up(n_blocks, t.warps_n) * div_up(k_blocks, t.warps_k);
  t.blocks = static_cast<int>(std::min<int64_t>(steps, params.integer("blocks", device.multiprocessors)));
  // More blocks than run at once would wait for each other for ever.
  require(t.blocks >= 1 && t.blocks <= device.multiprocessors,
          "blocks is not between 1 and the number of multiprocessors");
  return t;
}

// Whether the smallest tiling of `tokens` fits shared memory.
bool fits_least(int64_t tokens, int bits, int side_bytes, bool hopper, const DeviceFacts& device) {
  Tiling t;
  t.hopper = hopper;
  t.tiles = static_cast<int>(tokens / 8);
  t.warps_n = 4, t.stages = 3;
  return shared_bytes(t, bits, side_bytes) <= device.shared_per_block;
}

PackedMaps packed_maps(const GemmPackedArgs& a, int bits, const Tiling& t) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const int64_t step_groups = a.channel ? 1 : a.groups_per_block * t.warps_k;
  const uint64_t rows = u64(a.n_blocks);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMapShort, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, u32(8 * t.tiles), u32(2 * t.warps_k)}, true);
  maps.weights =
      describe_boxes(a.weights, kMapWide, {64, u64(a.k_blocks) * u64(bits), rows},
                     {512, u64(a.k_blocks) * u64(bits) * 512}, {64, u32(bits * t.warps_k), u32(t.warps_n)}, false);
  maps.scales = describe_boxes(a.scales, kMapShort, {32, u64(a.groups), rows}, {64, u64(a.groups) * 64},
                               {32, u32(step_groups), u32(t.warps_n)}, false);
  if (a.zero_kind)
    maps.zeros = describe_boxes(a.zeros, a.zero_kind == 1 ? kMapByte : kMapShort, {32, u64(a.groups), rows},
                                {u64(32 * a.zero_kind), u64(a.groups) * u64(32 * a.zero_kind)},
                                {32, u32(step_groups), u32(t.warps_n)}, false);
  return maps;
}

// How the streaming kernel cuts a product of up to 16 tokens.
struct StreamPlan {
  std::string kernel;
  int tiles = 1, sets = 1;
  unsigned shared = 0;
  double microseconds = 0;  // as predicted
  StreamArgs args{};
};
constexpr int kMostStreamTokens = 16;

// Clusters that the device holds at once: a block of this kernel takes a whole multiprocessor's registers, so shared
// memory does not come into it. Asked once.
int stream_clusters(CudaExec& exec, const std::string& kernel, int slices) {
  static std::mutex lock;
  static std::map<std::tuple<int, std::string, int>, int> known;
  const std::lock_guard<std::mutex> hold(lock);
  const auto [at, missing] = known.try_emplace({exec.device().ordinal, kernel, slices}, 0);
  if (missing) at->second = exec.resident_clusters(kernel, 32 * kStreamWarps, 0, slices);
  return at->second;
}

// Of all slicings of K the one that should end first. The coefficients are microseconds of an H200, fitted to 72 cuts
// of six shapes (docs/kernels.md); only their proportions matter:
//  - the busiest block streams its packed blocks with their scales at a multiprocessor's share of the memory's speed;
//  - before that it stages its slice of the activations: work for each packed block along K and tile, and bytes from
//    L2;
//  - at the end it adds up the strips' parts of a set in shared memory, 1 KiB a strip and tile; clusters begin and end
//    together, eight blocks less easily than two;
//  - or, where the parts go through the workspace, all of them are written, and read by whoever comes last with a
//    strip. That costs more than the bytes do, since a warp waits for its atomic and for what others wrote.
// `slices`, `reduce` (cluster or global) and `blocks` override. None fits where a slice of the activations does not fit
// shared memory.
std::optional<StreamPlan> stream_plan(const std::string& name, int64_t m, const GemmPackedArgs& a, int bits,
                                      int side_bytes, CudaExec& exec, const Params& params) {
  const int tiles = m <= 8 ? 1 : 2;
  // Activations in two parts (kernel_name): twice as much to stage, and to multiply with.
  const int x_tiles = name.ends_with("_wide") ? 2 * tiles : tiles;
  const int64_t blocks_a_unit = bits <= 2 ? 2 : 1;  // kStreamUnit, which stay whole where the fast loop takes them
  const bool fast = stream_simple(a, static_cast<int>(blocks_a_unit)), lean = fast && a.groups_per_block == 1;
  const std::string kernel = name + (lean ? "_s" : "_x") + std::to_string(tiles);
  const int64_t unit = fast ? blocks_a_unit : 1;
  const std::string reduce = params.text("reduce", "");
  require(reduce.empty() || reduce == "global" || reduce == "cluster", "reduce is neither global nor cluster");
  const int64_t asked = params.integer("slices", 0);
  require(asked >= 0 && asked <= a.k_blocks, "slices is not between 1 and the packed blocks along K");
  const int64_t running = params.integer("blocks", exec.device().multiprocessors);
  require(running >= 1, "blocks is not 1 or more");
  // A packed block: its bytes, or what the slow loop takes for it (about 230 instructions, 300 for 16 tokens, of which
  // 1.65 go out in a cycle; by count, not measured).
  const double slow = fast ? 0 : (tiles == 1 ? 0.08 : 0.105) * (a.groups_per_block == 4 || a.zero_kind ? 1.4 : 1);
  const double block = std::max(0.0284 * (512 * bits + side_bytes) / 1000, slow);
  std::optional<StreamPlan> best;
  for (const bool workspace : {false, true}) {
    if (!reduce.empty() && workspace != (reduce == "global")) continue;
    for (int64_t slices = asked ? asked : 1; slices <= (asked ? asked : std::min<int64_t>(a.k_blocks, 32)); ++slices) {
      const bool power = (slices & (slices - 1)) == 0;
      if (workspace ? slices == 1 && reduce.empty() : !power || slices > 8) continue;
      if (slices * unit > a.k_blocks) continue;
      const int64_t k_most = div_up(a.k_blocks / unit, slices) * unit;
      int64_t sets = std::clamp<int64_t>(running / slices, 1, a.n_blocks);
      if (!workspace && slices > 1)
        sets = std::min<int64_t>(sets, stream_clusters(exec, kernel, static_cast<int>(slices)));
      if (sets < 1) continue;
      // Parts of many strips do not fit: then more blocks than run at once.
      StreamShared places{};
      int64_t strips = div_up(a.n_blocks, sets);
      const auto fits = [&] {
        places = stream_shared(tiles, x_tiles, kStreamWarps, static_cast<int>(k_most), a.groups_per_block,
                               static_cast<int>(strips), workspace ? 0 : static_cast<int>(slices));
        return places.total <= exec.device().shared_per_block;
      };
      while (!fits() && strips > 1) strips = div_up(strips, 2);
      if (!fits()) continue;
      const int64_t at_once = sets;
      sets = div_up(a.n_blocks, strips);
      const double waves = static_cast<double>(div_up(sets, at_once));
      const double staged = static_cast<double>(k_most);
      const double megabytes = static_cast<double>(a.n_blocks * slices * tiles) / 1024;  // of parts in the workspace
      const double time = 3.2 +
                          waves * (block * static_cast<double>(strips * k_most) + 0.037 * staged * x_tiles +
                                   0.0033 * staged * static_cast<double>(m)) +
                          (workspace ? 1.9 + 0.55 * megabytes + 0.04 * megabytes * megabytes
                                     : waves * 0.0335 * static_cast<double>(strips * tiles) + (slices == 1  ? 0
                                                                                               : slices < 8 ? 0.25
                                                                                                            : 0.57));
      if (best && time >= best->microseconds) continue;
      best.emplace();
      best->kernel = kernel;
      best->tiles = tiles;
      best->sets = static_cast<int>(sets);
      best->shared = static_cast<unsigned>(places.total);
      best->microseconds = time;
      best->args.slices = static_cast<int>(slices);
      best->args.sets = best->sets;
      best->args.k_most = static_cast<int>(k_most);
      best->args.strips_most = static_cast<int>(strips);
      best->args.workspace = workspace;
    }
  }
  return best;
}

std::string kernel_name(const QuantType& type, DType x) {
  const bool integer = type.kind == QuantType::Kind::integer;
  // f16 holds 5 exponent bits where the type's highest exponent means infinity too.
  const bool wide = !integer && x == DType::f16 &&
                    (type.exponent > 5 || (type.exponent == 5 && type.special != QuantType::Special::ieee));
  return "lpq_gemm_" + std::string(integer ? "int" : "float") + std::to_string(type.bits) +
         (wide              ? "_wide"
          : x == DType::f16 ? "_f16"
                            : "_bf16");
}

// What a rehearsal says (chooser.h).
std::string packed_reason(const std::string& forced, const std::string& kernel, int64_t m, bool wgmma) {
  if (!forced.empty()) return "The call asks for the " + kernel + " kernel.";
  if (kernel == "stream")
    return "Up to " + std::to_string(kMostStreamTokens) +
           " tokens, of which a slice fits a multiprocessor's shared memory: the streaming kernel.";
  if (kernel == "wide")
    return std::to_string(m) + " tokens of a type and groups where the wide kernel was timed the fastest.";
  if (kernel == "scaled")
    return "More than " + std::to_string(kMostTokens) +
           " tokens: weights are scaled as they are cast, and rounded once.";
  if (kernel == "large")
    return "No wgmma and more than " + std::to_string(kMostExactTokens) +
           " tokens: mma.sync on weights that are scaled as they are cast, and rounded once.";
  if (kernel == "hopper")
    return "Neither the streaming nor the wide kernel takes this product or was timed faster: the Hopper kernel "
           "(wgmma).";
  return wgmma ? "None of the kernels for 9.0 takes this product: the portable kernel (mma.sync)."
               : "No wgmma: the portable kernel (mma.sync).";
}

std::string stream_reason(const StreamPlan& plan) {
  char predicted[32];
  std::snprintf(predicted, sizeof predicted, "%.1f", plan.microseconds);
  const std::string how = plan.args.slices == 1 ? "K whole"
                                                : "K in " + std::to_string(plan.args.slices) + " slices added up " +
                                                      (plan.args.workspace ? "through the workspace" : "in clusters");
  return std::to_string(plan.args.sets) + " sets of at most " + std::to_string(plan.args.strips_most) + " strips, " +
         how + ", should end first: " + predicted + " us, in terms of an H200.";
}

std::string tiling_reason(const Tiling& t) {
  return "Tiles of " + std::to_string(8 * t.tiles) + " tokens; " + std::to_string(t.warps_n) + " warps along N times " +
         std::to_string(t.warps_k) + " along K, " + std::to_string(t.stages) +
         " stages, which is what registers and shared memory hold; " + std::to_string(t.blocks) +
         " blocks share the steps evenly.";
}

void gemm_packed(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  p.know({"zero", "warpsN", "warpsK", "stages", "blocks", "tokens", "width", "slices", "reduce", "stripes", "overlap",
          "tuned"});
  const QuantType type = QuantType::from(p);
  const bool has_zeros = p.integer("hasZeros", 0) != 0, has_bias = p.integer("hasBias", 0) != 0;
  const Tensor &x = call.input(0), &weights = call.input(1), &scales = call.input(2), &y = call.output(0);
  require_dtype(x, "x", {DType::f16, DType::bf16});
  require_shape(x, "x", {-1, -1});
  const int64_t m = x.dim(0), k = x.dim(1);
  require_tensor(y, "y", x.dtype, {m, -1});
  const int64_t n = y.dim(1);
  constexpr int64_t most_rows = (int64_t{1} << 31) - 1024;
  require(k >= 1 && k < most_rows && n < most_rows && m < most_rows, "K is 0, or M, N or K is 2^31 or more");
  const int64_t n_blocks = div_up(n, kBlockN), k_blocks = div_up(k, kBlockK);
  require_tensor(weights, "weights", DType::u8, {n_blocks, k_blocks, 512 * type.bits});
  const int64_t group = p.integer("groupLength", 0);
  require(group == 0 || group == 32 || group == 64 || group == 128,
          "groupLength is not 0 (one scale a row), 32, 64 or 128");
  const int64_t groups = group == 0 ? 1 : div_up(k, group);
  require_dtype(scales, "scales", {DType::f16, DType::bf16});
  require_shape(scales, "scales", {n_blocks, groups, kBlockN});
  size_t next = 3;
  const Tensor* zeros = has_zeros ? &call.input(next++) : nullptr;
  if (zeros) {
    require(type.kind == QuantType::Kind::integer, "floating-point types have no zero points");
    require_dtype(*zeros, "zeros", {DType::u8, DType::f16});
    require_shape(*zeros, "zeros", {n_blocks, groups, kBlockN});
  }
  const Tensor* bias = has_bias ? &call.input(next++) : nullptr;
  if (bias) require_tensor(*bias, "bias", x.dtype, {n});
  for (const Tensor* t : {&x, &weights, &scales, &y, zeros, bias})
    if (t)
      require_device(exec, *t,
                     t == &x         ? "x"
                     : t == &y       ? "y"
                     : t == &weights ? "weights"
                     : t == &scales  ? "scales"
                     : t == zeros    ? "zeros"
                                     : "bias");
  for (const Tensor* t : {&weights, &scales, zeros})
    if (t)
      require(reinterpret_cast<uintptr_t>(t->raw()) % 16 == 0,
              "weights, scales and zeros start at multiples of 16 bytes");
  const double zero = p.number("zero", 0);
  require(type.kind == QuantType::Kind::integer || zero == 0, "floating-point types have no zero points");
  if (m == 0 || n == 0) return;

  GemmPackedArgs a{};
  a.weights = weights.data<uint8_t>();
  a.scales = scales.data<uint16_t>();
  a.zeros = zeros ? reinterpret_cast<const unsigned char*>(zeros->raw()) : nullptr;
  a.bias = bias ? bias->data<uint16_t>() : nullptr;
  a.n = static_cast<int>(n);
  a.k = static_cast<int>(k);
  a.n_blocks = static_cast<int>(n_blocks);
  a.k_blocks = static_cast<int>(k_blocks);
  a.groups = static_cast<int>(groups);
  a.groups_per_block = group == 0 ? 1 : static_cast<int>(kBlockK / group);
  a.channel = group == 0;
  a.scale_bf16 = scales.dtype == DType::bf16;
  a.zero_kind = !zeros ? 0 : zeros->dtype == DType::u8 ? 1 : 2;
  // Signed codes are read as code + 2^(bits-1).
  a.zero = (zeros ? 0.0f : static_cast<float>(zero)) +
           (type.kind == QuantType::Kind::integer && type.is_signed ? static_cast<float>(1 << (type.bits - 1)) : 0.0f);
  a.is_signed = type.is_signed;
  a.exponent = type.exponent;

  const std::string name = kernel_name(type, x.dtype);
  const std::string forced = p.text("kernel", "");
  require(forced.empty() || forced == "stream" || forced == "wide" || forced == "scaled" || forced == "hopper" ||
              forced == "large" || forced == "portable",
          "kernel is none of stream, wide, scaled, hopper, large, portable");
  const bool can_hopper = exec.device().features.wgmma && exec.has_kernel(name + "_h1") && can_describe_tensors();
  require(forced != "hopper" || can_hopper, "there is no Hopper kernel for this type and device");
  const bool can_stream = exec.device().features.wgmma && exec.has_kernel(name + "_s1");
  require(forced != "stream" || can_stream, "there is no streaming kernel for this type and device");
  // Where weights may be rounded unasked: as if they were dequantized first. A timing alone does not make a product
  // inexact.
  const bool scaled_safe = m > kMostTokens && (x.dtype == DType::bf16 || !a.scale_bf16);
  require(forced != "scaled" || scaled_safe || p.integer("tuned", 1) != kTuned,
          "settings that were timed would round weights where they are multiplied exactly");
  require(forced != "scaled" || has_gemm_scaled(exec, name),
          "there is no kernel of scaled weights for this type and device");
  require(forced != "wide" || has_gemm_wide(exec, name), "there is no wide kernel for this type and device");
  const bool can_large = has_gemm_large(exec, name, a, x.dtype == DType::bf16);
  require(forced != "large" || can_large, "there is no kernel of many tokens for this type, device and scales");
  const int side_bytes = a.groups_per_block * (64 + 32 * a.zero_kind);
  // Up to 16 tokens the streaming kernel, wherever a slice of their activations fits a multiprocessor; with zero points
  // of groups only where it ends before the Hopper kernel, which takes its bytes' time (a tenth more) and 10.5 µs.
  const auto streams = [&] {
    if (!forced.empty() || !can_stream || m > kMostStreamTokens) return false;
    const std::optional<StreamPlan> plan = stream_plan(name, m, a, type.bits, side_bytes, exec, p);
    if (!plan) return false;
    const double bytes = static_cast<double>(n_blocks * k_blocks * (512 * type.bits + side_bytes));
    return !can_hopper || plan->kernel == name + "_s1" || plan->kernel == name + "_s2" ||
           plan->microseconds < 10.5 + 1.1 * bytes / 4.2e6;
  };
  const bool stream = forced == "stream" || streams();
  // More tokens than the verifier takes (64): weights are rounded as if they were dequantized first.
  const bool scaled = forced == "scaled" || (forced.empty() && scaled_safe && has_gemm_scaled(exec, name));
  const bool wide =
      scaled || forced == "wide" ||
      (forced.empty() && !stream && wide_pays(a, type, x.dtype == DType::bf16, m) && has_gemm_wide(exec, name));
  const bool large =
      forced == "large" || (forced.empty() && !stream && !wide && !can_hopper && can_large && m > kMostExactTokens);
  const bool hopper = !stream && !wide && !large && can_hopper && forced != "portable";
  if (exec.rehearsing()) {
    const char* chosen = stream   ? "stream"
                         : scaled ? "scaled"
                         : wide   ? "wide"
                         : hopper ? "hopper"
                         : large  ? "large"
                                  : "portable";
    exec.because(packed_reason(forced, chosen, m, exec.device().features.wgmma));
  }
  // Weights, scales and zero points are read before the operation before has ended: it must not have written them.
  const bool safe =
      exec.follows_untouched(weights) && exec.follows_untouched(scales) && (!zeros || exec.follows_untouched(*zeros));
  // Copies of 16 bytes want rows that start at multiples of 16; boxes of 64 columns want whole ones.
  const int unit = hopper || wide ? 64 : 8;
  const uint16_t* rows = x.data<uint16_t>();
  std::optional<Scratch> padded;
  if (k % unit != 0 || reinterpret_cast<uintptr_t>(rows) % 16 != 0) {
    const int pitch = static_cast<int>(div_up(k, unit) * unit), width = static_cast<int>(k);
    padded.emplace(exec.scratch(static_cast<size_t>(m * pitch) * 2));
    uint16_t* to = padded->as<uint16_t>();
    const long long count = m;
    exec.launch("lpq_pad_rows", {stride_blocks(exec, m * pitch, 256)}, {256}, 0, rows, to, count, width, pitch);
    rows = to;
    a.k = pitch;
  }

  if (wide) {
    a.m = static_cast<int>(m);
    a.x = rows;
    a.y = y.data<uint16_t>();
    if (scaled) gemm_scaled(exec, name, a, type, x.dtype == DType::bf16, safe && !padded, p);
    else gemm_wide(exec, name, a, type.bits, x.dtype == DType::bf16, safe && !padded, p);
    return exec.wrote(y);
  }
  if (large) {
    a.m = static_cast<int>(m);
    a.x = rows;
    a.y = y.data<uint16_t>();
    return gemm_large(exec, name, type.bits, a, p);
  }
  // What gemm_large took over has portable kernels of up to 16 tokens only.
  const bool few = !stream && !hopper && !exec.has_kernel(name + "_t8");
  int64_t most = stream ? kMostStreamTokens : few ? kMostExactTokens : kMostTokens;
  // Where shared memory is small (8.6 and 8.9), wide types take fewer tokens at once.
  while (!stream && most > 8 && !fits_least(most, type.bits, side_bytes, hopper, exec.device())) most /= 2;
  for (int64_t first = 0; first < m; first += most) {
    const int64_t tokens = std::min<int64_t>(most, m - first);
    if (stream) {
      a.m = static_cast<int>(tokens);
      a.x = rows + first * a.k;
      a.y = y.data<uint16_t>() + first * n;
      a.warps_n = 1;
      const std::optional<StreamPlan> plan = stream_plan(name, tokens, a, type.bits, side_bytes, exec, p);
      require(plan.has_value(), "no slicing of K fits the streaming kernel");
      std::optional<Scratch> partial;
      if (plan->args.workspace)
        partial.emplace(
            exec.scratch(static_cast<size_t>(n_blocks) * static_cast<size_t>(plan->args.slices * plan->tiles) * 1024));
      a.partial = partial ? partial->as<float>() : nullptr;
      a.counters = exec.counters(static_cast<size_t>(n_blocks));
      if (exec.rehearsing() && first == 0) exec.because(stream_reason(*plan));
      StreamArgs args = plan->args;
      args.overlap = p.integer("overlap", 1) != 0 && safe;
      const bool cluster = args.slices > 1 && !args.workspace;
      exec.launch_clusters(plan->kernel, {plan->sets * args.slices}, {32 * kStreamWarps}, plan->shared,
                           cluster ? args.slices : 1, args.overlap != 0, a, args);
      exec.wrote(y);
      continue;
    }
    const Tiling t = choose(tokens, n_blocks, k_blocks, type.bits, side_bytes, hopper, exec.device(), p);
    if (exec.rehearsing() && first == 0) exec.because(tiling_reason(t));
    a.m = static_cast<int>(tokens);
    a.x = rows + first * a.k;
    a.y = y.data<uint16_t>() + first * n;
    a.warps_n = t.warps_n;
    a.warps_k = t.warps_k;
    a.stages = t.stages;
    a.strips = static_cast<int>(div_up(n_blocks, t.warps_n));
    a.steps = static_cast<int>(div_up(k_blocks, t.warps_k));
    const Scratch partial = exec.scratch(size_t{2} * static_cast<size_t>(t.blocks * t.warps_n * t.tiles) * 1024);
    a.partial = partial.as<float>();
    a.counters = exec.counters(size_t{2} * static_cast<size_t>(a.strips));
    const std::string tiles = std::to_string(t.tiles);
    if (hopper) {
      const PackedMaps maps = packed_maps(a, type.bits, t);
      exec.launch(name + "_h" + tiles, {t.blocks}, {32 * (t.warps_n * t.warps_k + 4)}, t.shared, a, maps);
    } else {
      require(exec.has_kernel(name + "_t" + tiles), "there is no portable kernel for this type and device");
      exec.launch(name + "_t" + tiles, {t.blocks}, {32 * t.warps_n * t.warps_k}, t.shared, a);
    }
  }
}

}  // namespace
LPQ_CUDA_OP(gemm_packed, "gemm_packed");
}  // namespace lpq::cuda
