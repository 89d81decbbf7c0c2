// Up to 64 tokens at a time by wgmma, of which a warp feeds the others by TMA (packed_sm90.cuh).
#include "cuda/gemm/families/packed_tiles.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

PackedMaps packed_maps(const GemmPackedArgs& a, int bits, const PackedTiles& t) {
  const auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const int64_t step_groups = a.channel ? 1 : a.groups_per_block * t.warps_k;
  const uint64_t rows = u64(a.n_blocks);
  PackedMaps maps{};
  maps.x = describe_boxes(a.x, kMap16, {64, u64(a.m), u64(a.k / 64)}, {u64(a.k) * 2, 128},
                          {64, u32(8 * t.tiles), u32(2 * t.warps_k)}, true);
  maps.weights =
      describe_boxes(a.weights, kMap64, {64, u64(a.k_blocks) * u64(bits), rows},
                     {512, u64(a.k_blocks) * u64(bits) * 512}, {64, u32(bits * t.warps_k), u32(t.warps_n)}, false);
  maps.scales = describe_boxes(a.scales, kMap16, {32, u64(a.groups), rows}, {64, u64(a.groups) * 64},
                               {32, u32(step_groups), u32(t.warps_n)}, false);
  if (a.zero_kind)
    maps.zeros = describe_boxes(a.zeros, a.zero_kind == 1 ? kMap8 : kMap16, {32, u64(a.groups), rows},
                                {u64(32 * a.zero_kind), u64(a.groups) * u64(32 * a.zero_kind)},
                                {32, u32(step_groups), u32(t.warps_n)}, false);
  return maps;
}

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
