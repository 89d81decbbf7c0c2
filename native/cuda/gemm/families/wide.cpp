// Any number of tokens by wgmma in wide strips, weights not rounded (wide.cuh).
#include "cuda/gemm/families/packed_problem.h"
#include "cuda/gemm/families/wide_plan.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

std::string how(const WidePlan& cut) {
  return "tiles of " + std::to_string(8 * cut.tiles) + " tokens and " + std::to_string(32 * cut.args.width) +
         " rows, " + std::to_string(cut.stages) + " stages, " + std::to_string(cut.args.items) + " items on " +
         std::to_string(cut.blocks) + " blocks";
}

// Up to 16 tokens it was never slower than the Hopper kernel, whose time stands for both.
Answer plan_wide(const PackedProblem& p, CudaExec& exec) {
  if (!p.asked() && !wide_was_timed(p))
    return "it was timed for u4 and i4 with a scale for 128 of K or a row, from 9 tokens on, and not for this";
  if (!exec.has_kernel(p.name + "_m2_o") || !can_describe_tensors()) return "there is no wide kernel for this type";
  const ops::GemmSettings& wish = p.wish;
  require_wide(wish, exec.device().multiprocessors);
  require(wish.tokens == 0 || wish.tokens == 16 || wish.tokens == 32 || wish.tokens == 64 || wish.tokens == 128,
          "tokens is not 16, 32, 64 or 128");
  std::optional<WidePlan> cut =
      choose_wide(exec.device().multiprocessors, exec.device().shared_per_block, p.args, p.bits, wish);
  require(cut.has_value(), "no tiling of the wide kernel fits");
  cut->args.zero_mode = wide_zero_mode(p.args, p.integer, p.bits, p.bf16);
  cut->args.vectors = vector_rows(p.args.y, p.args.n);
  const double time = p.op.m <= 16 ? few_tokens_microseconds(p) : cut->cycles / kWideClock;
  return Plan{1, time, *cut, exec.rehearsing() ? how(*cut) : ""};
}

void launch_wide(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  WidePlan cut = std::any_cast<const WidePlan&>(plan.cut);
  const PackedRows rows(p, 64, exec);
  GemmPackedArgs a = rows.args;
  a.stages = cut.stages;
  cut.args.overlap = p.wish.overlap && rows.untouched && !rows.rows.made;
  std::optional<Scratch> sums;
  if (cut.args.zero_mode == kZeroSums) {
    const int pitch = cut.args.token_tiles * 8 * cut.tiles;
    sums.emplace(exec.scratch(static_cast<size_t>(a.k_blocks) * static_cast<size_t>(a.groups_per_block * pitch) * 4));
    float* to = sums->as<float>();
    exec.launch(p.bf16 ? "lpq_group_sums_bf16" : "lpq_group_sums_f16", {div_up(pitch, 8), a.k_blocks}, {256}, 0, a.x,
                to, a.m, a.k, a.groups_per_block, pitch);
    cut.args.sums = to;
    cut.args.sums_pitch = pitch;
    cut.args.overlap = 0;  // the sums are read by all warps
  }
  std::optional<Scratch> partial;
  if (cut.args.items % cut.blocks != 0) {
    partial.emplace(
        share_sums(a, int64_t{2} * cut.blocks * cut.args.width * cut.tiles * 1024, 2 * cut.args.items, exec));
  }
  const bool one = a.groups_per_block == 1 && cut.args.zero_mode != kZeroSums;
  exec.launch_clusters(p.name + "_m" + std::to_string(cut.tiles) + (one ? "_o" : "_g"), {cut.blocks},
                       {32 * cut.warps + 128}, cut.shared, 1, cut.args.overlap != 0, a, cut.args,
                       wide_maps(a, p.bits, cut));
  exec.wrote(p.op.y);
}

}  // namespace

// Integers of 4 bits, one group a packed block or one scale a row, zero points that leave in the pairs, from 9 tokens
// on.
bool wide_was_timed(const PackedProblem& p) {
  return p.integer && p.bits == 4 && p.op.m > 8 && p.args.groups_per_block == 1 &&
         wide_zero_mode(p.args, true, p.bits, p.bf16) != kZeroSums;
}

const Family<PackedProblem> kWideFamily{"wide", {.wgmma = true}, plan_wide, launch_wide};

}  // namespace lpq::cuda
