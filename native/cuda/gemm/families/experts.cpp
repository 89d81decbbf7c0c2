// gemm_experts: how its kernels cut it, without knowing how many rows each expert has.
#include "cuda/gemm/families/experts.h"

#include "cuda/gemm/families/packed_tiles.h"
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

// Tokens of a tile: few, or many from so many rows an expert on in the mean, where tiles of few would read an expert's
// weights, and cast them, more than twice.
constexpr int kFewTokens = 16, kManyTokens = 64, kMeanOfMany = 32;

PackedTiles cut_experts(const ExpertProblem& p, bool wgmma, const DeviceFacts& device) {
  const int64_t wished = p.wish.tokens;
  require(wished == 0 || wished == kFewTokens || wished == kManyTokens, "tokens is not 16 or 64");
  DeviceFacts room = device;  // beside the plan
  const int plan = expert_plan_bytes(static_cast<int>(p.op.experts));
  room.shared_per_block -= plan;
  const bool many = wished ? wished == kManyTokens : p.op.m > p.op.experts * kMeanOfMany;
  const int64_t fits = fitting_tokens(p, kManyTokens, wgmma, room);
  PackedTiles t = cut_tiles(p, many && (wished || fits == kManyTokens) ? kManyTokens : kFewTokens, wgmma, room);
  t.shared += static_cast<unsigned>(plan);
  // One block a multiprocessor: as many as run at once. Tiles at most: full ones, and one more of each expert.
  const int64_t tiles = p.op.m / (8 * t.tiles) + std::min(p.op.m, p.op.experts);
  const int64_t steps = tiles * div_up(p.args.n_blocks, t.warps_n) * div_up(p.args.k_blocks, t.warps_k);
  require(steps < ops::kMostRows, "M, N and K give 2^31 steps or more");
  require(p.wish.blocks <= device.multiprocessors, "blocks is not between 1 and the number of multiprocessors");
  t.blocks = static_cast<int>(std::min<int64_t>(steps, p.wish.blocks ? p.wish.blocks : device.multiprocessors));
  return t;
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

// What kernels of either kind are given.
struct ExpertLaunch {
  PaddedRows rows;
  GemmPackedArgs args;
  ExpertArgs experts;
  Scratch partial;

  ExpertLaunch(const ExpertProblem& p, const PackedTiles& t, int unit, CudaExec& exec)
      : rows(p.op.x, unit, nullptr, exec),
        args(p.args),
        experts{p.op.offsets.data<int32_t>(), static_cast<int>(p.op.experts),
                exec.fault("LPQ_NATIVE_ARGUMENT",
                           "offsets do not ascend from 0 or more to at most " + std::to_string(p.op.m))},
        partial(share_sums(args, int64_t{2} * t.blocks * t.warps_n * t.tiles * 1024, 2 * t.blocks, exec)) {
    args.x = rows.x, args.k = rows.k;
    args.warps_n = t.warps_n, args.warps_k = t.warps_k, args.stages = t.stages;
    args.strips = static_cast<int>(div_up(args.n_blocks, t.warps_n));
    args.steps = static_cast<int>(div_up(args.k_blocks, t.warps_k));
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
  GemmPackedArgs all = with.args;  // of all experts, one below the other
  all.n_blocks *= with.experts.experts;
  exec.launch(kernel_of(p, t), {t.blocks}, {32 * (t.warps_n * t.warps_k + 4)}, t.shared, with.args, with.experts,
              packed_maps(all, p.bits, t));
}

void gemm_experts(Call& call, CudaExec& exec) {
  constexpr Family<ExpertProblem> kFamilies[] = {
      {"hopper", {.wgmma = true}, plan_experts<true>, launch_hopper},
      {"portable", {.portable = true}, plan_experts<false>, launch_portable},
  };
  const ops::GemmExperts op(call);
  const ExpertProblem problem(op);
  if (op.m == 0 || op.n == 0) return;
  require(op.n_blocks * op.experts < ops::kMostRows, "all experts have 2^31 packed blocks or more");
  run_families(problem, kFamilies, exec);
}
LPQ_CUDA_OP(gemm_experts, "gemm_experts");

}  // namespace
}  // namespace lpq::cuda
