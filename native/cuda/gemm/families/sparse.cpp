// gemm_sparse_marlin: weights 2:4 sparse by mma.sp, fed by TMA or by cp.async (sparse.cuh).
#include "cuda/gemm/families/sparse.h"

#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/family.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"
#include "ops/gemm_sparse_marlin.h"

namespace lpq::cuda {
namespace {

constexpr int kMostStages = 6;  // of the kernel that cp.async feeds

struct SparseProblem {
  const ops::GemmSparseMarlin& op;
  ops::GemmSettings wish;
  SparseArgs args;     // of the whole product: all but its cut and its rows
  std::string kernel;  // lpq_sparse_uB_X_
  int bits;

  explicit SparseProblem(const ops::GemmSparseMarlin& of) : op(of), wish(of.settings), args{}, bits(int(of.bits)) {
    require_sixteen(op.weights, "weights"), require_sixteen(op.metadata, "metadata"),
        require_sixteen(op.scales, "scales");
    kernel = "lpq_sparse_u" + std::to_string(bits) + (op.x.dtype == DType::f16 ? "_f16_" : "_bf16_");
    args.weights = reinterpret_cast<const unsigned char*>(op.weights.raw());
    args.metadata = reinterpret_cast<const unsigned char*>(op.metadata.raw());
    args.scales = reinterpret_cast<const unsigned char*>(op.scales.raw());
    args.bias = op.bias ? op.bias->data<uint16_t>() : nullptr;
    args.y = op.y.data<uint16_t>();
    args.policy = kEvictFirst;
    args.magic = magic_of(op.x.dtype);
    args.m = static_cast<int>(op.m), args.n = static_cast<int>(op.n);
    args.n_pad = static_cast<int>(op.n_pad), args.k_pad = static_cast<int>(op.k_pad);
    args.channel = op.groups == 1;  // a single row is in place, whatever made it single
    args.vectors = vector_rows(args.y, op.n);
  }
};

struct SparseCut {
  int tiles = 1, log_n = 0, log_k = 0, stages = 2;
  int blocks = 1;
  unsigned shared = 0;
  double microseconds = 0;
};

// Microseconds of an H200, fitted to 270 cuts of six shapes at M = 1, 16, 32 and 64 (docs/sparsity.md); what it chooses
// took 1.03 times the best.
double predict(const SparseCut& t, const SparseProblem& p) {
  const int64_t strips = div_up(p.op.n_pad, int64_t{kSparseColumns} << t.log_n),
                steps = div_up(p.op.k_pad, int64_t{kSparseK} << t.log_k);
  const int64_t batches = div_up(p.op.m, 8 * t.tiles), per = div_up(strips * batches * steps, t.blocks),
                warps = int64_t{1} << (t.log_n + t.log_k);
  const int64_t sharers = per % steps == 0 ? 1 : steps % per == 0 ? steps / per : (steps - 2) / per + 2;
  // Kilobytes that the busiest block streams; steps; columns that it ends; warps along K that add up; parts that are
  // read again, in KB.
  const double streamed = static_cast<double>(per * warps * (512 * p.bits + 1024 + 128)) / 1000,
               run = static_cast<double>(per);
  const double ends = run / static_cast<double>(steps) + (per % steps ? 1 : 0),
               adds = ends * t.log_k * static_cast<double>(t.tiles << t.log_n) / 16;
  const double parts = sharers > 1 ? static_cast<double>(sharers * t.tiles << t.log_n) * 2.048 : 0;
  return t.tiles <= 2
             ? streamed * (0.0267 + 0.0072 * (t.tiles - 1)) + 0.065 * run + 1.0 * ends + 2.2 * adds + 0.0075 * parts
             : streamed * 0.0121 * (t.tiles - 1) +
                   (0.165 + 0.11 * std::max(0.0, 1 - static_cast<double>(warps) / 8)) * run + 3.9 * ends + 1.43 * adds +
                   0.0106 * parts;
}

// Token tiles: the least of 1, 2, 4, 8 eights that hold m, as many as 64 tokens at a time. Warps: 16 while their sums
// fit 128 registers, less where two stages do not fit. How many of them lie along N: the least time.
SparseCut cut_sparse(const SparseProblem& p, bool tma, const DeviceFacts& device) {
  const int most_stages = tma ? kMostSparseStages : kMostStages;
  const int tiles = p.op.m <= 8 ? 1 : p.op.m <= 16 ? 2 : p.op.m <= 32 ? 4 : 8, most = tiles <= 2 ? 4 : 3;
  const int64_t warps_n = p.wish.warps_n, warps_k = p.wish.warps_k, stages = p.wish.stages;
  const int64_t blocks = p.wish.blocks ? p.wish.blocks : device.multiprocessors;
  const auto power_of_two = [](int64_t v) { return (v & (v - 1)) == 0; };
  require(power_of_two(warps_n) && power_of_two(warps_k) &&
              std::max<int64_t>(1, warps_n) * std::max<int64_t>(1, warps_k) <= 1 << most,
          "warpsN and warpsK do not fit the kernel");
  require(stages == 0 || (stages >= 2 && stages <= most_stages),
          "stages is not between 2 and " + std::to_string(most_stages));
  std::optional<SparseCut> best;
  for (int log_n = 0; log_n <= most; ++log_n)
    for (int log_k = 0; log_n + log_k <= most; ++log_k) {
      if (tma && log_n + log_k < 2) continue;  // registers change hands between whole groups of four warps
      if (warps_n > 0 && int64_t{1} << log_n != warps_n) continue;
      if (warps_k > 0 && int64_t{1} << log_k != warps_k) continue;
      // More stages did not help (docs/sparsity.md); the kernel without TMA hides less by itself.
      const int usual = !tma ? 4 : tiles == 8 ? 2 : 3;
      SparseCut t{tiles, log_n, log_k, static_cast<int>(stages ? stages : usual), static_cast<int>(blocks)};
      const auto bytes = [&] { return sparse_shared(p.bits, tiles, log_n, log_k, t.stages).total; };
      while (!stages && t.stages > 2 && bytes() > device.shared_per_block) --t.stages;
      if (bytes() > device.shared_per_block) continue;
      t.shared = static_cast<unsigned>(bytes());
      t.microseconds = predict(t, p);
      if (!best || t.microseconds < best->microseconds) best = t;
    }
  require(best.has_value(), "no such number of warps and stages fits shared memory");
  return *best;
}

Answer plan_sparse(const SparseProblem& p, bool tma, CudaExec& exec) {
  if (tma && (!exec.has_kernel(p.kernel + "h1") || !can_describe_tensors())) return "there is no kernel of this type";
  const SparseCut cut = cut_sparse(p, tma, exec.device());
  if (!exec.has_kernel(p.kernel + (tma ? "h" : "t") + std::to_string(cut.tiles)))
    return "there is no kernel of this type";
  return Plan{tma ? 0 : 1, cut.microseconds, cut,
              exec.rehearsing()
                  ? "tiles of " + std::to_string(8 * cut.tiles) + " tokens; " + std::to_string(1 << cut.log_n) +
                        " warps along N times " + std::to_string(1 << cut.log_k) + " along K, " +
                        std::to_string(cut.stages) + " stages"
                  : ""};
}

SparseMaps describe(const SparseArgs& a, int bits, const SparseCut& t) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint64_t tiles = u64(a.n_pad / kSparseColumns), rows = u64(a.k_pad / 32),
                 groups = u64(a.channel ? 1 : a.k_pad / kSparseK);
  const uint32_t across = u32(1 << t.log_n), down = u32(1 << t.log_k);
  SparseMaps maps{};
  maps.x = describe_boxes(a.x, kMap16, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, u32(8 * t.tiles), 2 * down}, true);
  maps.weights = describe_boxes(a.weights, kMap64, {u64(16 * bits), tiles, rows},
                                {u64(128 * bits), tiles * u64(128 * bits)}, {u32(16 * bits), across, 4 * down}, false);
  maps.metadata =
      describe_boxes(a.metadata, kMap64, {32, tiles, rows}, {256, tiles * 256}, {32, across, 4 * down}, false);
  maps.scales = describe_boxes(a.scales, kMap16, {64, tiles, groups}, {128, tiles * 128}, {64, across, down}, false);
  return maps;
}

void launch_sparse(const SparseProblem& p, const SparseCut& t, bool tma, CudaExec& exec) {
  SparseArgs a = p.args;
  const PaddedRows rows(p.op.x, tma ? 64 : 8, nullptr, exec);  // copies of 16 bytes want eights, boxes 64 columns
  a.k = rows.k;
  a.log_n = t.log_n, a.log_k = t.log_k, a.stages = t.stages;
  a.strips = static_cast<int>(div_up(a.n_pad, int64_t{kSparseColumns} << t.log_n));
  a.steps = static_cast<int>(div_up(a.k_pad, int64_t{kSparseK} << t.log_k));
  const std::string name = p.kernel + (tma ? "h" : "t") + std::to_string(t.tiles);
  // Tiles are counted in 32 bits: as many tokens a launch as that allows.
  const int64_t all = div_up(p.op.m, 8 * t.tiles),
                together = std::clamp<int64_t>((int64_t{1} << 29) / (int64_t{a.strips} * a.steps), 1, all);
  const Scratch partial = share_sums(a, t.blocks * (int64_t{2 * 2048} * t.tiles << t.log_n), a.strips * together, exec);
  for (int64_t first = 0; first < all; first += together) {
    const int64_t token = first * 8 * t.tiles;
    a.x = rows.x + token * a.k;
    a.y = p.args.y + token * a.n;
    a.batches = static_cast<int>(std::min(together, all - first));
    a.m = static_cast<int>(std::min<int64_t>(p.op.m - token, together * 8 * t.tiles));
    const int64_t tiles = int64_t{a.strips} * a.batches * a.steps;
    a.per = static_cast<int>(div_up(tiles, t.blocks));
    const Dim3 grid = {div_up(tiles, a.per)}, block = {(32 << (t.log_n + t.log_k)) + (tma ? 128 : 0)};
    if (!tma) {
      exec.launch(name, grid, block, t.shared, a);
      continue;
    }
    // Weights are read before the operation before has ended: it must not have written them.
    a.overlap = p.wish.overlap && exec.follows_untouched(p.op.weights) && exec.follows_untouched(p.op.metadata) &&
                exec.follows_untouched(p.op.scales);
    exec.launch_clusters(name, grid, block, t.shared, 1, a.overlap != 0, a, describe(a, p.bits, t));
    exec.wrote(p.op.y);
  }
}

// Both have the model; where the device has the one with TMA, it is that which was timed.
template <bool Tma>
constexpr Family<SparseProblem> kFamily = {
    Tma ? "tma" : "cp_async",
    {.portable = !Tma, .wgmma = Tma},
    [](const SparseProblem& p, CudaExec& exec) { return plan_sparse(p, Tma, exec); },
    [](const SparseProblem& p, const Plan& plan, CudaExec& exec) {
      launch_sparse(p, std::any_cast<const SparseCut&>(plan.cut), Tma, exec);
    }};

void gemm_sparse_marlin(Call& call, CudaExec& exec) {
  constexpr Family<SparseProblem> families[] = {kFamily<true>, kFamily<false>};
  const ops::GemmSparseMarlin op(call);
  const SparseProblem problem(op);
  if (op.m > 0 && op.n > 0) run_families(problem, families, exec);
}
LPQ_CUDA_OP(gemm_sparse_marlin, "gemm_sparse_marlin");

}  // namespace
}  // namespace lpq::cuda
