// gemm_experts: how its kernels cut it, without knowing how many rows each expert has.
#include "cuda/gemm/families/experts.h"

#include <cmath>

#include "cuda/gemm/families/packed_tiles.h"
#include "cuda/gemm/families/scaled_plan.h"
#include "cuda/gemm/families/wide_plan.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"
#include "ops/gemm_experts.h"

namespace lpq::cuda {
namespace {

struct ExpertProblem : PackedForm {
  const ops::GemmExperts& op;

  explicit ExpertProblem(const ops::GemmExperts& of) : PackedForm(of, of.n_blocks, of.k_blocks), op(of) {
    name = "lpq_experts_" + name;
  }
};

// Rows of a tile, and from more than how many rows an expert in the mean on they take less time than smaller ones
// (docs/internals/kernels/experts.md): of some and of many in the wide kernel, of many in the others, and of the most,
// where weights are rounded.
constexpr int kFewTokens = 16, kSomeTokens = 32, kManyTokens = 64, kMostTokens = 128;
constexpr int kMeanOfSome = 10, kMeanOfWide = 64, kMeanOfMany = 28, kMeanOfMost = 44;
// Steps that it takes to share an item in the others.
constexpr int kStepsOfSharing = 6;

// Rows an expert in the mean are more than that.
bool exceeds(const ExpertProblem& p, int64_t mean) { return p.op.m > p.op.experts * mean; }
// One block a multiprocessor: as many as run at once. Tiles at most: full ones, and one more of each expert.
int blocks_of(const ExpertProblem& p, int64_t tokens, int64_t strips, int64_t strip_steps, const DeviceFacts& device) {
  const int64_t tiles = p.op.m / tokens + std::min(p.op.m, p.op.experts), steps = tiles * strips * strip_steps;
  require(steps < ops::kMostRows, "M, N and K give 2^31 steps or more");
  require(p.wish.blocks <= device.multiprocessors, "blocks is not between 1 and the number of multiprocessors");
  return static_cast<int>(std::min<int64_t>(steps, p.wish.blocks ? p.wish.blocks : device.multiprocessors));
}

PackedTiles cut_experts(const ExpertProblem& p, bool wgmma, const DeviceFacts& device) {
  const int64_t wished = p.wish.tokens;
  require(wished == 0 || wished == kFewTokens || wished == kManyTokens, "tokens is not 16 or 64");
  DeviceFacts room = device;  // beside the plan
  const int plan = expert_plan_bytes(static_cast<int>(p.op.experts));
  room.shared_per_block -= plan;
  const bool many = wished ? wished == kManyTokens : exceeds(p, kMeanOfMany);
  const int64_t fits = fitting_tokens(p, kManyTokens, wgmma, room);
  PackedTiles t = cut_tiles(p, many && (wished || fits == kManyTokens) ? kManyTokens : kFewTokens, wgmma, room);
  t.shared += static_cast<unsigned>(plan);
  t.blocks = blocks_of(p, 8 * t.tiles, div_up(p.args.n_blocks, t.warps_n), div_up(p.args.k_blocks, t.warps_k), device);
  return t;
}

// Packed blocks of a strip. Tiles of 64 rows have eight: wider ones take longer, and have no more to read from L2.
// Smaller tiles have four, eight or sixteen: few where wider strips would leave multiprocessors without work, or items
// to be shared. By the model of the wide kernel (WideCycles), as if as many experts had rows as may have, and a tile
// and half a tile for each more that their rows fill.
int wide_width(const ExpertProblem& p, int tiles, const DeviceFacts& device) {
  const int64_t wished = p.wish.width;
  require(wished == 0 || wished == 4 || wished == 8 || wished == 16, "width is not 4, 8 or 16");
  if (wished) return static_cast<int>(std::min<int64_t>(wished, p.args.n_blocks));
  if (tiles > 4) return std::min(8, p.args.n_blocks);
  const int64_t asked = std::min(p.op.m, p.op.experts) + p.op.m / (16 * tiles), blocks = device.multiprocessors,
                steps = p.args.k_blocks;
  int best = 0;
  double least = 0;
  for (int width : {4, 8, 16}) {
    if (width > 4 && width / 2 >= p.args.n_blocks) break;
    const WideCycles cycles(p.args, p.bits, tiles, width);
    const int64_t items = asked * div_up(p.args.n_blocks, width);
    const double whole = static_cast<double>(div_up(items, blocks) * steps) * cycles.step(),
                 shared = static_cast<double>(div_up(items * steps, blocks)) * cycles.step() + cycles.share(1),
                 time = std::min(whole, shared);
    if (best == 0 || time < least) best = width, least = time;
  }
  return std::min(best, p.args.n_blocks);
}

// Nothing where shared memory does not hold it.
std::optional<WidePlan> cut_wide(const ExpertProblem& p, int64_t tokens, const DeviceFacts& device) {
  WidePlan cut;
  cut.tiles = static_cast<int>(tokens / 8);
  cut.args.width = wide_width(p, cut.tiles, device);
  cut.args.token_tiles = 1;  // of an item
  cut.args.zero_mode = wide_zero_mode(p.args, p.integer, p.bits, p.bf16);
  cut.args.vectors = vector_rows(p.args.y, p.op.columns);
  cut.warps = wide_warps(cut.tiles, cut.args.width);
  const int64_t stage = wide_stage_bytes(p.args, cut.tiles, cut.args.width, p.bits),
                besides = 1024 + expert_plan_bytes(static_cast<int>(p.op.experts)) + cut.warps * 512;
  const int64_t fit = (device.shared_per_block - besides) / stage;
  cut.stages = static_cast<int>(p.wish.stages ? p.wish.stages : std::min<int64_t>(kMostWideStages, fit));
  if (cut.stages > fit || cut.stages < (p.wish.stages ? 2 : 3)) return std::nullopt;
  cut.shared = static_cast<unsigned>(besides + cut.stages * stage);
  cut.blocks = blocks_of(p, 8 * cut.tiles, div_up(p.args.n_blocks, cut.args.width), p.args.k_blocks, device);
  return cut;
}

std::string wide_kernel(const ExpertProblem& p, const WidePlan& cut) {
  return p.name + "_m" + std::to_string(cut.tiles) + (p.args.groups_per_block == 1 ? "_o" : "_g");
}

Answer plan_wide(const ExpertProblem& p, CudaExec& exec) {
  if (p.wish.tokens == kMostTokens || p.wish.warps_n || p.wish.warps_k) return "it has tiles of 16, 32 and 64";
  if (wide_zero_mode(p.args, p.integer, p.bits, p.bf16) == kZeroSums)
    return "zero points do not leave in its pairs exactly";
  if (!can_describe_tensors()) return "this driver describes no tensors";
  const int64_t tokens = p.wish.tokens             ? p.wish.tokens
                         : exceeds(p, kMeanOfWide) ? kManyTokens
                         : exceeds(p, kMeanOfSome) ? kSomeTokens
                                                   : kFewTokens;
  const std::optional<WidePlan> cut = cut_wide(p, tokens, exec.device());
  if (!cut) return "its stages do not fit shared memory";
  if (!exec.has_kernel(wide_kernel(p, *cut))) return "there is no wide kernel for this type";
  return Plan{0, std::nullopt, *cut,
              exec.rehearsing()
                  ? "tiles of " + std::to_string(8 * cut->tiles) + " tokens and " +
                        std::to_string(32 * cut->args.width) + " rows, " + std::to_string(cut->stages) + " stages"
                  : ""};
}

// Weights that are rounded once: one form, of eight packed blocks and 128 rows.
constexpr ScaledForm kExpertForm{kMostTokens / 8, 2, 1, 0, 0, 0};

std::string scaled_kernel(const ExpertProblem& p) {
  return p.name + (p.integer && !scaled_constant(p.args, p.integer, p.bits, p.bf16) ? "_z" : "_c") +
         std::to_string(kExpertForm.tiles) + "x" + std::to_string(kExpertForm.halves);
}

Answer plan_scaled(const ExpertProblem& p, CudaExec& exec) {
  if ((p.wish.tokens && p.wish.tokens != kMostTokens) || p.wish.warps_n || p.wish.warps_k ||
      (!p.asked() && !exceeds(p, kMeanOfMost)))
    return "it is for many rows an expert, in tiles of 128";
  if (!p.asked() && !p.may_round()) return "scales in bf16 do not fit weights in f16";
  if (!can_describe_tensors()) return "this driver describes no tensors";
  if (!exec.has_kernel(scaled_kernel(p))) return "there is no kernel of scaled weights for this type";
  const DeviceFacts& device = exec.device();
  ScaledPlan cut{.form = kExpertForm};
  const int width = cut.form.width(), slab = 1024 * cut.form.tiles, staging = 8 * kScaledStaging,
            plan = expert_plan_bytes(static_cast<int>(p.op.experts));
  const int64_t stage = scaled_stage_bytes(p.args, width, p.bits);
  const auto [stages, slabs] =
      fit_stages(device.shared_per_block - 1024 - staging - plan, stage, slab, 2, p.wish.stages);
  if (slabs < 2) return "its stages do not fit shared memory";
  cut.stages = static_cast<int>(stages);
  cut.args.slabs = static_cast<int>(slabs), cut.args.rows = kMostTokens, cut.args.token_tiles = 1;
  cut.args.staging_at = static_cast<int>(1024 + slabs * slab + stages * stage);
  cut.args.received_at = cut.args.staging_at + staging;
  cut.args.lift = p.integer && p.op.type.is_signed ? static_cast<float>(1 << (p.bits - 1)) : 0.0f;
  cut.args.zero = p.args.zero - cut.args.lift;
  cut.args.vectors = vector_rows(p.args.y, p.op.columns);
  cut.shared = static_cast<unsigned>(cut.args.received_at + plan);
  cut.blocks = blocks_of(p, kMostTokens, div_up(p.args.n_blocks, width), p.args.k_blocks, device);
  return Plan{0, std::nullopt, cut,
              exec.rehearsing() ? "tiles of 128 tokens and 256 rows, " + std::to_string(cut.stages) +
                                      " stages; weights are rounded once"
                                : ""};
}

std::string kernel_of(const ExpertProblem& p, const PackedTiles& t) {
  return p.name + (t.wgmma ? "_h" : "_t") + std::to_string(t.tiles);
}

template <bool Wgmma>
Answer plan_experts(const ExpertProblem& p, CudaExec& exec) {
  if (Wgmma && !can_describe_tensors()) return "this driver describes no tensors";
  const PackedTiles t = cut_experts(p, Wgmma, exec.device());
  if (!exec.has_kernel(kernel_of(p, t))) return "there is no such kernel for this type";
  return Plan{Wgmma ? 0 : 1, std::nullopt, t, exec.rehearsing() ? tiles_text(t) : ""};
}

// The activation of a gated product, as its kernels compute it: what `odd` holds is times -log2(e). That of gelu is
// fitted: x s is off by 3.1e-6 at most.
ExpertGate gate_of(const ops::GemmExperts& op) {
  using ops::Act;
  const ops::ExpertGating& g = op.gate;
  ExpertGate made{g ? kGateLinear : 0, static_cast<int>(op.columns), {1}, g.limit > 0 ? g.limit : INFINITY, 0};
  if (g.kind == ops::ExpertGating::kClamped) made.odd[0] = g.alpha, made.lift = 1;
  else if (g.is(Act::sigmoid)) made.kind = kGateShare;
  else if (g.is(Act::quick_gelu)) made.odd[0] = 1.702f;
  else if (g.is(Act::relu) || g.is(Act::relu2)) made.odd[0] = 1e30f;  // a step
  else if (g.is(Act::gelu_tanh)) made.odd[0] = 1.5957691216f, made.odd[1] = 0.0713548163f;
  else if (g.is(Act::gelu)) {
    const float fitted[] = {1.59565627f, 7.29375816e-2f, -2.49723069e-4f, -6.11620538e-5f, 2.23816679e-6f};
    std::copy(std::begin(fitted), std::end(fitted), made.odd);
  }
  if (g.is(Act::relu2)) made.kind = kGateSquare;
  for (float& each : made.odd) each *= -1.44269504f;
  return made;
}

// What all kernels are given.
struct ExpertLaunch {
  PaddedRows rows;
  GemmPackedArgs args;
  ExpertArgs experts;
  Scratch partial;

  // `width`: packed blocks of a strip; `sharing`: as of ExpertArgs.
  ExpertLaunch(const ExpertProblem& p, int width, int tiles, int blocks, int stages, int unit, int sharing,
               CudaExec& exec)
      : rows(p.op.x, unit, nullptr, exec),
        args(p.args),
        experts{p.op.offsets.data<int32_t>(), static_cast<int>(p.op.experts),
                exec.fault("LPQ_NATIVE_ARGUMENT",
                           "offsets do not ascend from 0 or more to at most " + std::to_string(p.op.m)),
                sharing, gate_of(p.op)},
        partial(share_sums(args, int64_t{2} * blocks * width * tiles * 1024, 2 * blocks, exec)) {
    args.x = rows.x, args.k = rows.k, args.stages = stages;
    args.strips = static_cast<int>(div_up(args.n_blocks, width));
  }
  ExpertLaunch(const ExpertProblem& p, const PackedTiles& t, int unit, CudaExec& exec)
      : ExpertLaunch(p, t.warps_n, t.tiles, t.blocks, t.stages, unit, kStepsOfSharing, exec) {
    args.warps_n = t.warps_n, args.warps_k = t.warps_k;
    args.steps = static_cast<int>(div_up(args.k_blocks, t.warps_k));
  }
  // The weights of all experts, one below the other, as TMA is told of them.
  GemmPackedArgs all() const {
    GemmPackedArgs whole = args;
    whole.n_blocks *= experts.experts;
    return whole;
  }
};

void launch_portable(const ExpertProblem& p, const Plan& plan, CudaExec& exec) {
  const auto& t = std::any_cast<const PackedTiles&>(plan.cut);
  const ExpertLaunch with(p, t, 8, exec);
  exec.launch(kernel_of(p, t), {t.blocks}, {32 * t.warps_n * t.warps_k}, t.shared, with.args, with.experts);
}

void launch_hopper(const ExpertProblem& p, const Plan& plan, CudaExec& exec) {
  const auto& t = std::any_cast<const PackedTiles&>(plan.cut);
  const ExpertLaunch with(p, t, 64, exec);
  exec.launch_after(kernel_of(p, t), {t.blocks}, {32 * (t.warps_n * t.warps_k + 4)}, t.shared, with.args, with.experts,
                    packed_maps(with.all(), p.bits, t));
}

void launch_wide(const ExpertProblem& p, const Plan& plan, CudaExec& exec) {
  const auto& cut = std::any_cast<const WidePlan&>(plan.cut);
  const WideCycles cycles(p.args, p.bits, cut.tiles, cut.args.width);
  const int sharing = static_cast<int>(cycles.share(1) / cycles.step());
  const ExpertLaunch with(p, cut.args.width, cut.tiles, cut.blocks, cut.stages, 64, sharing, exec);
  exec.launch_after(wide_kernel(p, cut), {cut.blocks}, {32 * cut.warps + 128}, cut.shared, with.args, cut.args,
                    with.experts, wide_maps(with.all(), p.bits, cut));
}

void launch_scaled(const ExpertProblem& p, const Plan& plan, CudaExec& exec) {
  const auto& cut = std::any_cast<const ScaledPlan&>(plan.cut);
  const ExpertLaunch with(p, cut.form.width(), cut.form.tiles, cut.blocks, cut.stages, 64, 0, exec);
  exec.launch_after(scaled_kernel(p), {cut.blocks}, {scaled_threads(1)}, cut.shared, with.args, cut.args, with.experts,
                    scaled_maps(with.all(), p.bits, cut));
}

void gemm_experts(Call& call, CudaExec& exec) {
  constexpr Family<ExpertProblem> kFamilies[] = {
      {"scaled", {.wgmma = true}, plan_scaled, launch_scaled},
      {"wide", {.wgmma = true}, plan_wide, launch_wide},
      {"hopper", {.wgmma = true}, plan_experts<true>, launch_hopper},
      {"portable", {.portable = true}, plan_experts<false>, launch_portable},
  };
  const ops::GemmExperts op(call);
  ExpertProblem problem(op);
  if (op.m == 0 || op.n == 0) return;
  require(op.n_blocks * op.experts < ops::kMostRows, "all experts have 2^31 packed blocks or more");
  run_families(problem, kFamilies, op.m, exec);
}
LPQ_CUDA_OP(gemm_experts, "gemm_experts");

}  // namespace
}  // namespace lpq::cuda
