// Up to 64 tokens at a time by mma.sync (packed.cuh): what every device runs.
#include "cuda/gemm/families/packed_tiles.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

std::string kernel_of(const PackedProblem& p, int tiles) { return p.name + "_t" + std::to_string(tiles); }

// Has no model, and goes last: others were timed faster wherever they take a product.
Answer plan_portable(const PackedProblem& p, CudaExec& exec) {
  // Types that `large` takes have kernels of up to 16 tokens only.
  const int64_t wanted = exec.has_kernel(kernel_of(p, 8)) ? kMostExactTokens : kMostPortableTokens,
                most = fitting_tokens(p, wanted, false, exec.device()), rest = p.op.m % most;
  const PackedTiles first = cut_tiles(p, std::min(p.op.m, most), false, exec.device());
  if (!exec.has_kernel(kernel_of(p, first.tiles)) ||
      (rest && !exec.has_kernel(kernel_of(p, cut_tiles(p, rest, false, exec.device()).tiles))))
    return "there is no portable kernel for this type";
  return Plan{4, std::nullopt, most, exec.rehearsing() ? tiles_text(first) : ""};
}

void launch_portable(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  launch_tiles(p, std::any_cast<int64_t>(plan.cut), false, 8, exec, [&](const GemmPackedArgs& a, const PackedTiles& t) {
    exec.launch(kernel_of(p, t.tiles), {t.blocks}, {32 * t.warps_n * t.warps_k}, t.shared, a);
  });
}

}  // namespace

const Family<PackedProblem> kPortableFamily{"portable", {.portable = true}, plan_portable, launch_portable};

}  // namespace lpq::cuda
