// Many tokens by wgmma, weights scaled as they are cast and rounded once (scaled.cuh).
#include "cuda/gemm/families/packed_problem.h"
#include "cuda/gemm/families/scaled_plan.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// lpq_gemm_TYPE_X_c, or _z where weights lose zero points of their own.
std::string kind_of(const PackedProblem& p) {
  return p.name + (p.integer && !scaled_constant(p.args, p.integer, p.bits, p.bf16) ? "_z" : "_c");
}

// More tokens are multiplied with rounded weights unasked: as many as the kernels that do not round were timed to be
// slower for.
int64_t most_exact(const PackedProblem& p, CudaExec& exec) {
  if (!exec.has_kernel(kind_of(p) + "8x1x2")) return kMostExactTokens;
  return !p.integer && p.bits <= 4 ? kMostExactWide : kMostExactNarrow;
}

// First wherever weights may be rounded unasked, as if they were dequantized first. A timing alone does not make a
// product inexact.
Answer plan_scaled(const PackedProblem& p, CudaExec& exec) {
  const int64_t exact = most_exact(p, exec);
  const bool safe = p.op.m > exact && p.may_round();
  if (p.wish.timed && p.asked() && !safe)
    return "settings that were timed would round weights where they are multiplied exactly";
  if (!p.asked() && p.op.m <= exact)
    return "up to " + std::to_string(exact) + " tokens are multiplied with weights that are not rounded";
  if (!p.asked() && !safe) return "scales in bf16 do not fit weights in f16";
  if (!exec.has_kernel(p.name + "_c16x2x1") || !can_describe_tensors())
    return "there is no kernel of scaled weights for this type";
  const std::string kind = kind_of(p);
  require_wide(p.wish, 2 * exec.device().multiprocessors);
  std::optional<ScaledPlan> cut = choose_scaled(
      exec.device().multiprocessors, exec.device().shared_per_block, p.args, p.bits, p.wish,
      [&](const ScaledForm& form) { return exec.has_kernel(kind + form.name()); },
      [&](const ScaledForm& form, int cluster) {
        return exec.resident_clusters(kind + form.name(), scaled_threads(form.pairs),
                                      static_cast<unsigned>(exec.device().shared_per_block), cluster);
      });
  require(cut.has_value(), "no tiling of the kernel of scaled weights fits");
  cut->args.lift = p.integer && p.op.type.is_signed ? static_cast<float>(1 << (p.bits - 1)) : 0.0f;
  cut->args.zero = p.args.zero - cut->args.lift;
  cut->args.vectors = vector_rows(p.args.y, p.args.n);
  // Up to so many tokens the wide kernel is as fast on large weights, and exact.
  const int tier = wide_was_timed(p) && p.op.m <= kMostExactWide ? 1 : 0;
  return Plan{tier, cut->nanoseconds / 1000, *cut,
              exec.rehearsing() ? scaled_cut_in_words(*cut) + "; weights are rounded once" : ""};
}

void launch_scaled(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  ScaledPlan cut = std::any_cast<const ScaledPlan&>(plan.cut);
  const PackedRows rows(p, 64, exec);
  GemmPackedArgs a = rows.args;
  a.stages = cut.stages;
  cut.args.overlap = p.wish.overlap && rows.untouched && !rows.rows.made;
  std::optional<Scratch> partial;
  if (cut.args.shared_items > 0 && !cut.args.cluster) {
    const int64_t sums = int64_t{cut.form.tiles} * cut.form.width() * 1024;  // of a block, in bytes
    partial.emplace(share_sums(a, cut.args.shared_blocks * sums, 2 * cut.args.shared_items, exec));
  }
  exec.launch_clusters(kind_of(p) + cut.form.name(), {cut.blocks}, {scaled_threads(cut.form.pairs)}, cut.shared,
                       std::max(1, cut.args.cluster), cut.args.overlap != 0, a, cut.args, scaled_maps(a, p.bits, cut));
  exec.wrote(p.op.y);
}

}  // namespace

const Family<PackedProblem> kScaledFamily{"scaled", {.wgmma = true}, plan_scaled, launch_scaled};

}  // namespace lpq::cuda
