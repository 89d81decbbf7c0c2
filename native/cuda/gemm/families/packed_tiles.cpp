#include "cuda/gemm/families/packed_tiles.h"

#include "cuda/launch.h"

namespace lpq::cuda {
// Measured in docs/internals/kernels/wide.md.
//  - token tiles: the least of 1, 2, 4, 8 eights that hold them;
//  - warps: 16 where their registers do (up to 16 tokens; wgmma 32), else 8. Eight along N, so that a stage of
//    activations serves 256 columns, the rest along K; fewer along N only where N is smaller;
//  - stages: what shared memory holds, up to 8; four with wgmma, more do not help;
//  - with wgmma, where a multiprocessor has fewer than three steps to do, steps half as large;
//  - blocks: one a multiprocessor, or one a step where there are fewer steps.
PackedTiles cut_tiles(const PackedForm& p, int64_t tokens, bool wgmma, const DeviceFacts& device) {
  const int64_t n_blocks = p.args.n_blocks, k_blocks = p.args.k_blocks;
  PackedTiles t;
  t.wgmma = wgmma;
  t.tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
  const int warps = t.tiles <= 2 || (wgmma && t.tiles == 4) ? 16 : 8, most = 8, wanted = wgmma ? 4 : 8;
  if (wgmma && t.tiles <= 4 && div_up(n_blocks, 8) * div_up(k_blocks, 2) < 3 * device.multiprocessors) t.warps_n = 4;
  while (t.warps_n > 4 && t.warps_n / 2 >= n_blocks) t.warps_n /= 2;
  if (p.wish.warps_n) t.warps_n = static_cast<int>(p.wish.warps_n);
  require(t.warps_n == 4 || t.warps_n == 8 || t.warps_n == 16, "warpsN is not 4, 8 or 16");
  t.warps_k = std::max(1, wgmma && t.tiles <= 4 ? 2 : warps / t.warps_n);
  while (t.warps_k > 1 && t.warps_k / 2 >= k_blocks) t.warps_k /= 2;
  if (p.wish.warps_k) t.warps_k = static_cast<int>(p.wish.warps_k);
  require(t.warps_n * t.warps_k <= warps && (t.warps_k & (t.warps_k - 1)) == 0,
          "warpsN and warpsK do not fit the kernel");
  const auto fits = [&](int stages) {
    PackedTiles with = t;
    with.stages = stages;
    return shared_bytes(with, p.bits, p.side_bytes) <= device.shared_per_block;
  };
  while (t.warps_k > 1 && !fits(3)) t.warps_k /= 2;
  while (t.warps_n > 4 && !fits(3)) t.warps_n /= 2;
  t.stages = wanted;
  while (t.stages > 3 && !fits(t.stages)) --t.stages;
  if (p.wish.stages) t.stages = static_cast<int>(p.wish.stages);
  require(t.stages >= 3 && t.stages <= most && fits(t.stages), "stages do not fit shared memory");
  t.shared = static_cast<unsigned>(shared_bytes(t, p.bits, p.side_bytes));
  const int64_t steps = div_up(n_blocks, t.warps_n) * div_up(k_blocks, t.warps_k);
  t.blocks = static_cast<int>(std::min<int64_t>(steps, p.wish.blocks ? p.wish.blocks : device.multiprocessors));
  // More blocks than run at once would wait for each other for ever.
  require(t.blocks <= device.multiprocessors, "blocks is not between 1 and the number of multiprocessors");
  return t;
}

int64_t fitting_tokens(const PackedForm& p, int64_t most, bool wgmma, const DeviceFacts& device) {
  PackedTiles least{.wgmma = wgmma, .warps_n = 4, .stages = 3};
  for (; most > 8; most /= 2) {
    least.tiles = static_cast<int>(most / 8);
    if (shared_bytes(least, p.bits, p.side_bytes) <= device.shared_per_block) break;
  }
  return most;
}

std::string tiles_text(const PackedTiles& t) {
  return "tiles of " + std::to_string(8 * t.tiles) + " tokens; " + std::to_string(t.warps_n) + " warps along N times " +
         std::to_string(t.warps_k) + " along K, " + std::to_string(t.stages) +
         " stages, which is what registers and shared memory hold; " + std::to_string(t.blocks) +
         " blocks share the steps evenly";
}

void launch_tiles(const PackedProblem& p, int64_t most, bool wgmma, int unit, CudaExec& exec,
                  const std::function<void(const GemmPackedArgs&, const PackedTiles&)>& kernel) {
  const PackedRows rows(p, unit, exec);
  for (int64_t first = 0; first < p.op.m; first += most) {
    const int64_t tokens = std::min(most, p.op.m - first);
    const PackedTiles t = cut_tiles(p, tokens, wgmma, exec.device());
    GemmPackedArgs a = rows.from(first, tokens);
    a.warps_n = t.warps_n, a.warps_k = t.warps_k, a.stages = t.stages;
    a.strips = static_cast<int>(div_up(a.n_blocks, t.warps_n)),
    a.steps = static_cast<int>(div_up(a.k_blocks, t.warps_k));
    const Scratch partial = share_sums(a, int64_t{2} * t.blocks * t.warps_n * t.tiles * 1024, 2 * a.strips, exec);
    kernel(a, t);
  }
}

}  // namespace lpq::cuda
