// Up to 64 tokens at a time by wgmma, of which a warp feeds the others by TMA (packed_sm90.cuh).
#include "cuda/gemm/families/packed_tiles.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// Up to 16 tokens its time is compared with the streaming kernel's slow loop. Beyond, the kernels that go before it
// were timed faster wherever they take a product.
Answer plan_hopper(const PackedProblem& p, CudaExec& exec) {
  if (!exec.has_kernel(p.name + "_h1") || !can_describe_tensors()) return "there is no Hopper kernel for this type";
  const int64_t most = fitting_tokens(p, kMostExactTokens, true, exec.device());
  const PackedTiles t = cut_tiles(p, std::min(p.op.m, most), true, exec.device());
  const bool few = p.op.m <= 16;
  return Plan{few ? 1 : 2, few ? std::optional(few_tokens_microseconds(p)) : std::nullopt, most,
              exec.rehearsing() ? tiles_text(t) : ""};
}

void launch_hopper(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  launch_tiles(p, std::any_cast<int64_t>(plan.cut), true, 64, exec, [&](const GemmPackedArgs& a, const PackedTiles& t) {
    const PackedMaps maps = packed_maps(a, p.bits, t);
    exec.launch(p.name + "_h" + std::to_string(t.tiles), {t.blocks}, {32 * (t.warps_n * t.warps_k + 4)}, t.shared, a,
                maps);
  });
}

}  // namespace

const Family<PackedProblem> kHopperFamily{"hopper", {.wgmma = true}, plan_hopper, launch_hopper};

}  // namespace lpq::cuda
