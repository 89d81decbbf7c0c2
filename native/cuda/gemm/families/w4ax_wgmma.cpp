// W4Ax by wgmma, any number of tokens (w4ax.cuh).
#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/families/w4ax_plan.h"
#include "cuda/gemm/families/w4ax_problem.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

uint64_t u64(int64_t v) { return static_cast<uint64_t>(v); }
uint32_t u32(int64_t v) { return static_cast<uint32_t>(v); }

std::string kernel_of(int tiles) { return "lpq_gemm_act_w4ax_m" + std::to_string(tiles); }

Answer plan_wgmma(const W4axProblem& p, CudaExec& exec) {
  if (!can_describe_tensors() || !exec.has_kernel(kernel_of(2))) return "there is no kernel of wgmma for W4Ax";
  const DeviceFacts& device = exec.device();
  ops::GemmSettings wish = p.wish;
  require(wish.tokens == 0 || wish.tokens == 16 || wish.tokens == 32 || wish.tokens == 64 || wish.tokens == 128,
          "tokens is not 16, 32, 64 or 128");
  require(wish.cluster <= 2, "cluster is not 1 or 2");
  const auto plan_with = [&] {
    return plan_w4ax(device.multiprocessors, device.shared_per_block, p.m, p.n, p.k, wish);
  };
  auto cut = plan_with();
  // Blocks wait for each other's sums, so all must be resident; where a device holds fewer clusters, blocks work alone.
  if (cut && cut->cluster > 1 &&
      exec.resident_clusters(kernel_of(cut->tiles), kW4axThreads, cut->shared_bytes, cut->cluster) * cut->cluster <
          cut->blocks) {
    wish.cluster = 1;
    cut = plan_with();
  }
  require(cut.has_value(), "no tiling of the kernel of wgmma fits");
  return Plan{1, cut->microseconds, *cut,
              exec.rehearsing() ? "tiles of " + std::to_string(8 * cut->tiles) + " tokens, " +
                                      std::to_string(cut->items) + " items on " + std::to_string(cut->blocks) +
                                      " blocks, of which they share " + std::to_string(cut->shared)
                                : ""};
}

// Rows of `bytes` bytes, `pitch` apart, in boxes of `box` bytes of `rows` rows.
TensorMap byte_rows(const Tensor& from, int64_t count, int64_t box, int64_t rows, bool swizzle) {
  const int64_t pitch = from.dim(1);
  return describe_boxes(from.raw(), kMap8, {u64(pitch), u64(count), 1}, {u64(pitch), u64(pitch * count)},
                        {u32(box), u32(rows), 1}, swizzle);
}
// f32 [rows, pitch] in boxes of `box` of a row.
TensorMap float_rows(const Tensor& t, int64_t box) {
  const int64_t pitch = t.dim(1);
  return describe_boxes(t.raw(), kMap64, {u64(pitch / 2), u64(t.dim(0)), 1},
                        {u64(pitch * 4), u64(pitch * t.dim(0) * 4)}, {u32(box / 2), 1, 1}, false);
}
TensorMap packed_rows(const Tensor& w) {
  const int64_t kb = w.dim(1);
  return describe_boxes(w.raw(), kMap64, {128, u64(kb), u64(w.dim(0))}, {1024, u64(kb * 1024)}, {128, 1, 8}, false);
}

W4axMaps describe(const W4axProblem& p, int tiles) {
  W4axMaps maps{};
  // Of a precision that no block has, the other's bytes are described, and never read.
  const Tensor &x8 = p.blocks->x8, &x4 = p.blocks->x4;
  maps.x = byte_rows(x8.dim(1) ? x8 : x4, p.m, 128, 8 * tiles, true);
  maps.x4 = byte_rows(x4.dim(1) ? x4 : x8, p.m, 64, 8 * tiles, false);
  maps.x_scales = float_rows(p.x_scales, 8 * tiles);
  maps.weights = packed_rows(p.w), maps.w_scales = float_rows(p.w_scales, kW4axRows);
  return maps;
}

void launch_wgmma(const W4axProblem& p, const Plan& plan, CudaExec& exec) {
  const W4axPlan& cut = std::any_cast<const W4axPlan&>(plan.cut);
  W4axArgs a{};
  a.blocks = p.blocks->blocks.data<int32_t>();
  a.bias = p.bias_data();
  a.y = p.y.raw();
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.k_blocks = static_cast<int>(div_up(p.k, 128));
  a.token_tiles = cut.token_tiles, a.items = cut.items, a.shared = cut.shared, a.stages = cut.stages,
  a.cluster = cut.cluster;
  a.store = p.store();
  a.vectors = vector_rows(a.y, p.n);
  std::optional<Scratch> partial;
  if (cut.shared > 0) {
    partial.emplace(share_sums(a, int64_t{16} * cut.blocks * cut.tiles * 1024, 2 * cut.shared * cut.cluster, exec));
  }
  exec.launch_clusters(kernel_of(cut.tiles), {cut.blocks}, {kW4axThreads}, cut.shared_bytes, cut.cluster, false, a,
                       describe(p, cut.tiles));
}

}  // namespace

const Family<W4axProblem> kW4axWgmmaFamily{"wgmma", {.wgmma = true}, plan_wgmma, launch_wgmma};

}  // namespace lpq::cuda
