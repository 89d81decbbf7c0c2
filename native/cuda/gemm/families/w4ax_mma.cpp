// W4Ax by mma.sync: up to 16 tokens at the speed of the weights (w4ax_few.cuh), and any number on devices without wgmma
// (w4ax_mixed.cuh).
#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/families/w4ax_few.h"
#include "cuda/gemm/families/w4ax_problem.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

MixedArgs arguments(const W4axProblem& p) {
  MixedArgs a{};
  const ops::W4axBlocks& x = *p.blocks;
  a.x8 = x.x8.data<signed char>(), a.x4 = x.x4.data<unsigned char>(), a.w = p.w.data<unsigned char>();
  a.x_scales = p.x_scales.data<float>(), a.w_scales = p.w_scales.data<float>(), a.blocks = x.blocks.data<int32_t>();
  a.k_blocks = static_cast<int>(x.count), a.eights = static_cast<int>(x.eights), a.fours = static_cast<int>(x.fours);
  a.x_pitch = static_cast<int>(p.x_scales.dim(1)),
  a.w_pitch = static_cast<int>(p.factors ? p.factors->dim(1) : p.w_scales.dim(1));
  a.y = p.y.raw(), a.bias = p.bias_data();
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.store = p.store();
  return a;
}

// First where it was timed faster than wgmma's (docs/internals/kernels/w4ax.md). Its time there, of six shapes
// and up to 8 tokens: that of the weights and scales at 3.5 MB a microsecond.
Answer plan_few_tokens(const W4axProblem& p, CudaExec& exec) {
  const ops::GemmSettings& wish = p.wish;
  if (p.factors) return "it has no scales of two levels";
  if (p.m > kFewTokens) return "it takes up to 16 tokens, and there are more";
  if (wish.tokens || wish.width || wish.blocks || wish.stages || wish.shared >= 0 || !wish.reduce.empty())
    return "it has no cuts to choose from";
  if (!exec.has_kernel("lpq_gemm_few_t1_r2")) return "there is no kernel of few tokens";
  const FewPlan cut =
      plan_few(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n, p.blocks->count);
  if (cut.shared_bytes == 0) return "no tiling of the kernel of few tokens fits";
  if (!p.asked() && !few_is_faster(cut)) return "with two tiles of tokens it was slower where a block has so many rows";
  const double bytes = static_cast<double>(p.w.bytes() + p.w_scales.bytes());
  return Plan{0, 3.5 + bytes / 3.5e6, cut,
              exec.rehearsing() ? "warps of a block share K, " + std::to_string(cut.split) + " of " +
                                      std::to_string(kFewWarps) + ", over " + std::to_string(cut.rows) +
                                      " tiles of 16 rows on " + std::to_string(cut.blocks) + " blocks"
                                : ""};
}

void launch_few_tokens(const W4axProblem& p, const Plan& plan, CudaExec& exec) {
  const FewPlan& cut = std::any_cast<const FewPlan&>(plan.cut);
  FewArgs a{};
  static_cast<MixedArgs&>(a) = arguments(p);
  a.rows = cut.rows, a.at_once = cut.at_once, a.split = cut.split, a.resident = cut.resident;
  // What the kernel reads before the operation before has ended is not what that wrote.
  a.overlap =
      exec.follows_untouched(p.w) && exec.follows_untouched(p.w_scales) && exec.follows_untouched(p.blocks->blocks);
  exec.launch_clusters("lpq_gemm_few_t" + std::to_string(cut.tiles) + "_r" + std::to_string(cut.kernel_rows),
                       {cut.blocks}, {32 * kFewWarps}, cut.shared_bytes, 1, a.overlap != 0, a);
  exec.wrote(p.y);
}

// Has no model: it has run on no card of its kind.
Answer plan_mma(const W4axProblem& p, CudaExec& exec) {
  require(p.wish.tokens != 32, "tiles of this kernel have 16, 64 or 128 tokens");
  const MixedPlan cut = plan_mixed(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n,
                                   p.blocks->count, static_cast<int>(p.wish.tokens), static_cast<int>(p.wish.shared));
  if (cut.stages < 2) return "no tiling of gemm_comet fits";
  return Plan{2, std::nullopt, cut,
              exec.rehearsing() ? "tiles of " + std::to_string(8 * cut.tiles) + " tokens, " +
                                      std::to_string(cut.items) + " items on " + std::to_string(cut.blocks) +
                                      " blocks; blocks of 4 bits on INT4 tensor cores where the device has them"
                                : ""};
}

void launch_mma(const W4axProblem& p, const Plan& plan, CudaExec& exec) {
  const MixedPlan& cut = std::any_cast<const MixedPlan&>(plan.cut);
  MixedArgs a = arguments(p);
  a.token_tiles = cut.token_tiles, a.items = cut.items, a.shared = cut.shared, a.stages = cut.stages;
  std::optional<Scratch> partial, scales;
  if (p.factors) {
    // Of both levels as one number in f32 [k / 128, n']: this kernel's sums have the scales of rows within.
    const long long count = p.factors->elements();
    scales.emplace(exec.scratch(static_cast<size_t>(count) * 4));
    exec.launch("lpq_join_scales", {stride_blocks(exec, count, 256)}, {256}, 0,
                reinterpret_cast<const signed char*>(p.factors->raw()),
                static_cast<const float*>(p.w_scales.data<float>()), scales->as<float>(), count, a.w_pitch, a.n);
    a.w_scales = scales->as<float>();
  }
  if (cut.shared > 0) {
    partial.emplace(share_sums(a, int64_t{16} * cut.blocks * cut.tiles * kMixedRows * 4, cut.shared, exec));
  }
  exec.launch("lpq_gemm_mixed_t" + std::to_string(cut.tiles), {cut.blocks}, {kMixedThreads}, cut.shared_bytes, a);
}

}  // namespace

const Family<W4axProblem> kW4axFewFamily{"few", {.wgmma = true}, plan_few_tokens, launch_few_tokens};
const Family<W4axProblem> kW4axMmaFamily{"mma", {.portable = true}, plan_mma, launch_mma};

}  // namespace lpq::cuda
