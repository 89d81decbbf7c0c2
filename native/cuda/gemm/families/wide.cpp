#include "cuda/gemm/families/wide.h"

#include <optional>

#include "cuda/gemm/families/scaled_plan.h"
#include "cuda/gemm/families/wide_plan.h"
#include "cuda/launch.h"

namespace lpq::cuda {

bool has_gemm_wide(CudaExec& exec, const std::string& name) {
  return exec.device().features.wgmma && exec.has_kernel(name + "_m2_o") && can_describe_tensors();
}

bool wide_pays(const GemmPackedArgs& a, const QuantType& type, bool bf16, int64_t tokens) {
  const bool integer = type.kind == QuantType::Kind::integer;
  return integer && type.bits == 4 && tokens > 8 && a.groups_per_block == 1 &&
         wide_zero_mode(a, integer, type.bits, bf16) != kZeroSums;
}

bool has_gemm_scaled(CudaExec& exec, const std::string& name) {
  return exec.device().features.wgmma && exec.has_kernel(name + "_c16x2") && can_describe_tensors();
}

namespace {

WideWish wishes(CudaExec& exec, const Params& params) {
  const auto wished = [&](const char* what) { return static_cast<int>(params.integer(what, 0)); };
  const WideWish wish{wished("tokens"), wished("width"), wished("stages"), wished("blocks")};
  require(wish.stages == 0 || (wish.stages >= 2 && wish.stages <= kMostWideStages), "stages is not between 2 and 16");
  require(wish.blocks >= 0 && wish.blocks <= exec.device().multiprocessors,
          "blocks is not between 1 and the number of multiprocessors");
  return wish;
}

}  // namespace

void gemm_scaled(CudaExec& exec, const std::string& name, GemmPackedArgs a, const QuantType& type, bool bf16, bool safe,
                 const Params& params) {
  const bool integer = type.kind == QuantType::Kind::integer, constant = scaled_constant(a, integer, type.bits, bf16);
  const std::string kind = name + (integer && !constant ? "_z" : "_c");
  const std::optional<ScaledPlan> chosen =
      choose_scaled(exec.device().multiprocessors, exec.device().shared_per_block, a, type.bits, wishes(exec, params),
                    [&](const ScaledForm& form) { return exec.has_kernel(kind + form.name()); });
  require(chosen.has_value(), "no tiling of the kernel of scaled weights fits");
  ScaledPlan plan = *chosen;
  if (exec.rehearsing())
    exec.because("Tiles of " + std::to_string(8 * plan.form.tiles) + " tokens and " +
                 std::to_string(128 * plan.form.halves) + " rows, " + std::to_string(plan.args.items) +
                 " items, of which " + std::to_string(plan.args.shared_items) +
                 " are cut along K: the least time by the planner's model.");
  a.stages = plan.stages;
  plan.args.lift = integer && type.is_signed ? static_cast<float>(1 << (type.bits - 1)) : 0.0f;
  plan.args.zero = a.zero - plan.args.lift;
  plan.args.vectors = a.n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  plan.args.overlap = params.integer("overlap", 1) != 0 && safe;
  std::optional<Scratch> partial;
  if (plan.args.shared_items > 0) {
    const size_t sums = static_cast<size_t>(plan.form.tiles * plan.form.halves) * 8 * 512;  // of a block, in bytes
    partial.emplace(exec.scratch(static_cast<size_t>(plan.args.shared_blocks) * sums));
    a.partial = partial->as<float>();
    a.counters = exec.counters(size_t{2} * static_cast<size_t>(plan.args.shared_items));
  }
  exec.launch_clusters(kind + plan.form.name(), {plan.blocks}, {32 * 8 + 128}, plan.shared, 1, plan.args.overlap != 0,
                       a, plan.args, scaled_maps(a, type.bits, plan));
}

void gemm_wide(CudaExec& exec, const std::string& name, GemmPackedArgs a, int bits, bool bf16, bool safe,
               const Params& params) {
  const WideWish wish = wishes(exec, params);
  require(wish.tokens == 0 || wish.tokens == 16 || wish.tokens == 32 || wish.tokens == 64 || wish.tokens == 128,
          "tokens is not 16, 32, 64 or 128");
  const std::optional<WidePlan> chosen =
      choose_wide(exec.device().multiprocessors, exec.device().shared_per_block, a, bits, wish);
  require(chosen.has_value(), "no tiling of the wide kernel fits");
  WidePlan plan = *chosen;
  if (exec.rehearsing())
    exec.because("Tiles of " + std::to_string(8 * plan.tiles) + " tokens and " + std::to_string(32 * plan.args.width) +
                 " rows, " + std::to_string(plan.stages) + " stages, " + std::to_string(plan.args.items) +
                 " items on " + std::to_string(plan.blocks) + " blocks: the fewest cycles by the planner's model.");
  a.stages = plan.stages;
  plan.args.zero_mode = wide_zero_mode(a, name.find("_int") != std::string::npos, bits, bf16);
  plan.args.vectors = a.n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  plan.args.overlap = params.integer("overlap", 1) != 0 && safe;
  std::optional<Scratch> sums;
  if (plan.args.zero_mode == kZeroSums) {
    const int pitch = plan.args.token_tiles * 8 * plan.tiles;
    sums.emplace(exec.scratch(static_cast<size_t>(a.k_blocks) * static_cast<size_t>(a.groups_per_block * pitch) * 4));
    float* to = sums->as<float>();
    exec.launch(bf16 ? "lpq_group_sums_bf16" : "lpq_group_sums_f16", {div_up(pitch, 8), a.k_blocks}, {256}, 0, a.x, to,
                a.m, a.k, a.groups_per_block, pitch);
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
  exec.launch_clusters(name + "_m" + std::to_string(plan.tiles) + (one ? "_o" : "_g"), {plan.blocks},
                       {32 * plan.warps + 128}, plan.shared, 1, plan.args.overlap != 0, a, plan.args,
                       wide_maps(a, bits, plan));
}

}  // namespace lpq::cuda
