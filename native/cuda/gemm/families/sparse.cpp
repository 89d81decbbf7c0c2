// gemm_sparse_marlin (native/ops.ts): checks, the choice of tiles, launches.
#include "cuda/gemm/families/sparse.h"

#include <algorithm>
#include <optional>
#include <string>

#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// What createpolicy.fractional.L2::evict_first would give for all of an access.
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
constexpr int kMostStages = 6;  // of the kernel that is not Hopper's

struct Tiling {
  int tiles = 1, log_n = 0, log_k = 0, stages = 2;
  int blocks = 1;
  unsigned shared = 0;
};

bool power_of_two(int64_t v) { return v > 0 && (v & (v - 1)) == 0; }
int log2_of(int64_t v) {
  int log = 0;
  while (v > 1) v /= 2, ++log;
  return log;
}

// Token tiles: the least of 1, 2, 4, 8 eights that hold m, as many as 64 tokens at a time. Warps: 16 while their sums
// fit 128 registers, less where two stages do not fit. How many of them lie along N: the least time by a model in
// microseconds of an H200, fitted to 270 cuts of six shapes at M = 1, 16, 32 and 64 (docs/sparsity.md); what it chooses
// took 1.03 times the best.
Tiling choose(int64_t m, int bits, const SparseArgs& a, bool bulk, const DeviceFacts& device, const Params& params) {
  const int most_stages = bulk ? kMostSparseStages : kMostStages;
  const int tiles = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8, most = tiles <= 2 ? 4 : 3;
  const int64_t warps_n = params.integer("warpsN", 0), warps_k = params.integer("warpsK", 0),
                stages = params.integer("stages", 0);
  const int64_t blocks = params.integer("blocks", device.multiprocessors);
  require(blocks >= 1, "blocks is not 1 or more");
  require((warps_n == 0 || power_of_two(warps_n)) && (warps_k == 0 || power_of_two(warps_k)) &&
              std::max<int64_t>(1, warps_n) * std::max<int64_t>(1, warps_k) <= 1 << most,
          "warpsN and warpsK do not fit the kernel");
  require(stages == 0 || (stages >= 2 && stages <= most_stages),
          "stages is not between 2 and " + std::to_string(most_stages));
  std::optional<Tiling> best;
  double least = 0;
  for (int log_n = 0; log_n <= most; ++log_n)
    for (int log_k = 0; log_n + log_k <= most; ++log_k) {
      if (bulk && log_n + log_k < 2) continue;  // registers change hands between whole groups of four warps
      if (warps_n > 0 && log_n != log2_of(warps_n)) continue;
      if (warps_k > 0 && log_k != log2_of(warps_k)) continue;
      // More stages did not help (docs/sparsity.md); the kernel without the bulk engine hides less by itself.
      const int usual = !bulk ? 4 : tiles == 8 ? 2 : 3;
      Tiling t{tiles, log_n, log_k, static_cast<int>(stages ? stages : usual), static_cast<int>(blocks), 0};
      const auto bytes = [&] { return sparse_shared(bits, tiles, log_n, log_k, t.stages).total; };
      while (!stages && t.stages > 2 && bytes() > device.shared_per_block) --t.stages;
      if (bytes() > device.shared_per_block) continue;
      t.shared = static_cast<unsigned>(bytes());
      const int64_t strips = div_up(a.n_pad, int64_t{kSparseColumns} << log_n),
                    steps = div_up(a.k_pad, int64_t{kSparseK} << log_k);
      const int64_t batches = div_up(m, 8 * tiles), per = div_up(strips * batches * steps, blocks),
                    warps = int64_t{1} << (log_n + log_k);
      const int64_t sharers = per % steps == 0 ? 1 : steps % per == 0 ? steps / per : (steps - 2) / per + 2;
      // Kilobytes that the busiest block streams; steps; columns that it ends; warps along K that add up; parts that
      // are read again, in KB.
      const double streamed = static_cast<double>(per * warps * (512 * bits + 1024 + 128)) / 1000,
                   run = static_cast<double>(per);
      const double ends = run / static_cast<double>(steps) + (per % steps ? 1 : 0),
                   adds = ends * log_k * static_cast<double>(tiles << log_n) / 16;
      const double parts = sharers > 1 ? static_cast<double>(sharers * tiles << log_n) * 2.048 : 0;
      const double time = tiles <= 2 ? streamed * (0.0267 + 0.0072 * (tiles - 1)) + 0.065 * run + 1.0 * ends +
                                           2.2 * adds + 0.0075 * parts
                                     : streamed * 0.0121 * (tiles - 1) +
                                           (0.165 + 0.11 * std::max(0.0, 1 - static_cast<double>(warps) / 8)) * run +
                                           3.9 * ends + 1.43 * adds + 0.0106 * parts;
      if (best && time >= least) continue;
      best = t, least = time;
    }
  require(best.has_value(), "no such number of warps and stages fits shared memory");
  return *best;
}

SparseMaps describe(const SparseArgs& a, int bits, const Tiling& t) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint64_t tiles = u64(a.n_pad / kSparseColumns), rows = u64(a.k_pad / 32),
                 groups = u64(a.channel ? 1 : a.k_pad / kSparseK);
  const uint32_t across = u32(1 << t.log_n), down = u32(1 << t.log_k);
  SparseMaps maps{};
  maps.x = describe_boxes(a.x, kMapShort, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, u32(8 * t.tiles), 2 * down}, true);
  maps.weights = describe_boxes(a.weights, kMapWide, {u64(16 * bits), tiles, rows},
                                {u64(128 * bits), tiles * u64(128 * bits)}, {u32(16 * bits), across, 4 * down}, false);
  maps.metadata =
      describe_boxes(a.metadata, kMapWide, {32, tiles, rows}, {256, tiles * 256}, {32, across, 4 * down}, false);
  maps.scales = describe_boxes(a.scales, kMapShort, {64, tiles, groups}, {128, tiles * 128}, {64, across, down}, false);
  return maps;
}

void gemm_sparse_marlin(Call& call, CudaExec& exec) {
  const Params& p = call.params;
  p.know({"overlap"});
  const int64_t bits = p.integer("bits"), group = p.integer("groupLength", 0);
  require(bits == 4 || bits == 8, "bits is not 4 or 8");
  require(group == 0 || group == kSparseK, "groupLength is not 0 (one scale a row) or 128");
  const Tensor &x = call.input(0), &weights = call.input(1), &metadata = call.input(2), &scales = call.input(3),
               &y = call.output(0);
  const Tensor* bias = p.integer("hasBias", 0) != 0 ? &call.input(4) : nullptr;
  require_dtype(x, "x", {DType::f16, DType::bf16});
  require_shape(x, "x", {-1, -1});
  const int64_t m = x.dim(0), k = x.dim(1);
  require_tensor(y, "y", x.dtype, {m, -1});
  const int64_t n = y.dim(1);
  require(k >= 1 && k < (int64_t{1} << 31) - 1024 && n < (int64_t{1} << 31) - 1024,
          "K is 0, or N or K is 2^31 or more");
  if (bias) require_tensor(*bias, "bias", x.dtype, {n});
  require_dtype(metadata, "metadata", {DType::i16});
  require_shape(metadata, "metadata", {-1, -1});
  const int64_t k_pad = metadata.dim(0) * 32, n_pad = metadata.dim(1) / 2;
  require(metadata.dim(1) % (2 * kSparseColumns) == 0 && k_pad % kSparseK == 0 && n_pad >= n && k_pad >= k &&
              n_pad < (int64_t{1} << 31) && k_pad < (int64_t{1} << 31),
          "metadata is not of whole tiles of 64 columns and 128 rows that hold N and K");
  require_tensor(weights, "weights", DType::i32, {k_pad / 32, n_pad * bits / 2});
  const int64_t groups = group == 0 ? 1 : k_pad / group;
  require_tensor(scales, "scales", DType::f16, {groups, n_pad});
  for (const Tensor* t : {&x, &y, &weights, &metadata, &scales, bias})
    if (t)
      require_device(exec, *t,
                     t == &x          ? "x"
                     : t == &y        ? "y"
                     : t == &weights  ? "weights"
                     : t == &metadata ? "metadata"
                     : t == &scales   ? "scales"
                                      : "bias");
  for (const Tensor* t : {&weights, &metadata, &scales})
    require(reinterpret_cast<uintptr_t>(t->raw()) % 16 == 0,
            "weights, metadata and scales start at multiples of 16 bytes");
  if (m == 0 || n == 0) return;

  SparseArgs a{};
  a.weights = reinterpret_cast<const unsigned char*>(weights.raw());
  a.metadata = reinterpret_cast<const unsigned char*>(metadata.raw());
  a.scales = reinterpret_cast<const unsigned char*>(scales.raw());
  a.bias = bias ? bias->data<uint16_t>() : nullptr;
  a.y = y.data<uint16_t>();
  a.policy = kEvictFirst;
  a.magic = x.dtype == DType::f16 ? 0x64006400u : 0x43004300u;
  a.m = static_cast<int>(m), a.n = static_cast<int>(n);
  a.n_pad = static_cast<int>(n_pad), a.k_pad = static_cast<int>(k_pad);
  a.channel = groups == 1;  // a single row is in place, whatever made it single
  a.vectors = n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  const std::string base = "lpq_sparse_u" + std::to_string(bits) + (x.dtype == DType::f16 ? "_f16_" : "_bf16_");
  const bool bulk = exec.device().features.wgmma && exec.has_kernel(base + "h1") && can_describe_tensors();
  // Copies of 16 bytes want rows that start at multiples of 16; boxes of 64 columns want whole ones.
  const int64_t unit = bulk ? 64 : 8, pitch = div_up(k, unit) * unit;
  const uint16_t* rows = x.data<uint16_t>();
  std::optional<Scratch> arranged;
  if (k != pitch || reinterpret_cast<uintptr_t>(rows) % 16 != 0) {
    arranged.emplace(exec.scratch(static_cast<size_t>(m * pitch) * 2));
    uint16_t* to = arranged->as<uint16_t>();
    const long long count = m;
    const int width = static_cast<int>(k), wide = static_cast<int>(pitch);
    exec.launch("lpq_pad_rows", {stride_blocks(exec, m * pitch, 256)}, {256}, 0, rows, to, count, width, wide);
    rows = to;
  }
  a.x = rows;
  a.k = static_cast<int>(pitch);

  const Tiling t = choose(m, static_cast<int>(bits), a, bulk, exec.device(), p);
  a.log_n = t.log_n, a.log_k = t.log_k, a.stages = t.stages;
  a.strips = static_cast<int>(div_up(n_pad, int64_t{kSparseColumns} << t.log_n));
  a.steps = static_cast<int>(div_up(k_pad, int64_t{kSparseK} << t.log_k));
  const std::string name = base + (bulk ? "h" : "t") + std::to_string(t.tiles);
  // Tiles are counted in 32 bits: as many tokens a launch as that allows.
  const int64_t all = div_up(m, 8 * t.tiles),
                together = std::clamp<int64_t>((int64_t{1} << 29) / (int64_t{a.strips} * a.steps), 1, all);
  const Scratch partial =
      exec.scratch(static_cast<size_t>(t.blocks) * (size_t{2 * 2048} * static_cast<size_t>(t.tiles) << t.log_n));
  a.partial = partial.as<float>();
  a.counters = exec.counters(static_cast<size_t>(a.strips) * static_cast<size_t>(together));
  for (int64_t first = 0; first < all; first += together) {
    const int64_t token = first * 8 * t.tiles;
    a.x = rows + token * pitch;
    a.y = y.data<uint16_t>() + token * n;
    a.batches = static_cast<int>(std::min(together, all - first));
    a.m = static_cast<int>(std::min<int64_t>(m - token, together * 8 * t.tiles));
    const int64_t tiles = int64_t{a.strips} * a.batches * a.steps;
    a.per = static_cast<int>(div_up(tiles, t.blocks));
    const Dim3 grid = {div_up(tiles, a.per)}, block = {(32 << (t.log_n + t.log_k)) + (bulk ? 128 : 0)};
    if (bulk) {
      // Weights are read before the operation before has ended: it must not have written them.
      a.overlap = p.integer("overlap", 1) != 0 && exec.follows_untouched(weights) && exec.follows_untouched(metadata) &&
                  exec.follows_untouched(scales);
      exec.launch_clusters(name, grid, block, t.shared, 1, a.overlap != 0, a, describe(a, static_cast<int>(bits), t));
      exec.wrote(y);
    } else exec.launch(name, grid, block, t.shared, a);
  }
}
LPQ_CUDA_OP(gemm_sparse_marlin, "gemm_sparse_marlin");

}  // namespace
}  // namespace lpq::cuda
