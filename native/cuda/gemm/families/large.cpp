// Many tokens by mma.sync, weights scaled as they are cast (large.cuh).
#include "cuda/gemm/families/large.h"

#include "cuda/gemm/families/packed_problem.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

struct LargeCut {
  std::string kernel;
  int64_t tiles = 16, blocks = 1;
  unsigned shared = 0;
  bool whole = true;  // tiles, not equal runs of steps
  LargeArgs args{};
};

// lpq_gemm_TYPE -> lpq_large_TYPE_tT
std::string large_name(const std::string& name, int64_t tiles) {
  return "lpq_large_" + name.substr(9) + "_t" + std::to_string(tiles);
}

// Tiles of 32, 64 or 128 tokens: the least that hold m (where the device's build has them), fewer where shared memory
// does not hold their stages (8.6 and 8.9 with seven bits or more). Whole tiles where their waves are at least 92 %
// full, else equal runs of steps, which cost two parts of a tile a block through the workspace.
LargeCut cut_large(const PackedProblem& p, CudaExec& exec) {
  const int64_t wished = p.wish.tokens;
  require(wished == 0 || wished == 32 || wished == 64 || wished == 128, "tokens is not 32, 64 or 128");
  const auto shared_of = [&](int64_t tiles) { return large_shared(p.bits, static_cast<int>(tiles)); };
  LargeCut cut;
  cut.tiles = wished ? wished / 8 : p.op.m <= 32 ? 4 : p.op.m <= 64 ? 8 : 16;
  while (cut.tiles < 16 && !exec.has_kernel(large_name(p.name, cut.tiles))) cut.tiles *= 2;
  while (!wished && cut.tiles > 4 && shared_of(cut.tiles) > exec.device().shared_per_block) cut.tiles /= 2;
  require(shared_of(cut.tiles) <= exec.device().shared_per_block, "tiles of this many tokens do not fit shared memory");
  cut.shared = static_cast<unsigned>(shared_of(cut.tiles));
  cut.kernel = large_name(p.name, cut.tiles);
  const int64_t held = std::max(1, exec.occupancy(cut.kernel, 32 * kLargeWarps, cut.shared));
  cut.blocks = p.wish.blocks ? p.wish.blocks : exec.device().multiprocessors * held;
  cut.args.token_tiles = static_cast<int>(div_up(p.op.m, 8 * cut.tiles));
  cut.args.band = std::min(cut.args.token_tiles, 8);
  cut.args.vectors = vector_rows(p.args.y, p.args.n);
  const int64_t all = div_up(p.args.n_blocks, kLargeWarps) * cut.args.token_tiles;
  cut.whole = all * 100 >= div_up(all, cut.blocks) * cut.blocks * 92;
  require(cut.whole || all * p.args.k_blocks < int64_t{1} << 31, "there are too many tiles for equal runs");
  if (!cut.whole) cut.args.per = static_cast<int>(div_up(all * p.args.k_blocks, cut.blocks));
  return cut;
}

// Has no model. It goes before the portable kernel, which took longer from 17 tokens on, and behind those of wgmma.
Answer plan_large(const PackedProblem& p, CudaExec& exec) {
  if (!p.asked() && p.op.m <= kMostPortableTokens)
    return "up to " + std::to_string(kMostPortableTokens) + " tokens are multiplied with weights that are not rounded";
  if (!exec.has_kernel(large_name(p.name, 16))) return "there is no kernel of many tokens for this type";
  if (!p.may_round()) return "scales in bf16 do not fit weights in f16";
  const LargeCut cut = cut_large(p, exec);
  return Plan{3, std::nullopt, cut,
              exec.rehearsing() ? "tiles of 256 columns by " + std::to_string(8 * cut.tiles) + " tokens, " +
                                      (cut.whole ? "done whole" : "in equal runs of steps")
                                : ""};
}

void launch_large(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  const LargeCut& cut = std::any_cast<const LargeCut&>(plan.cut);
  const PackedRows rows(p, 8, exec);
  GemmPackedArgs a = rows.args;
  a.strips = static_cast<int>(div_up(a.n_blocks, kLargeWarps));
  a.steps = a.k_blocks;
  const int64_t all = int64_t{a.strips} * cut.args.token_tiles;
  int64_t grid = std::min(all, cut.blocks);
  std::optional<Scratch> partial;
  if (!cut.whole) {
    grid = div_up(all * a.steps, cut.args.per);
    partial.emplace(share_sums(a, 2 * grid * kLargeWarps * cut.tiles * 1024, all, exec));
  }
  exec.launch(cut.kernel, {grid}, {32 * kLargeWarps}, cut.shared, a, cut.args);
}

}  // namespace

const Family<PackedProblem> kLargeFamily{"large", {.portable = true}, plan_large, launch_large};

}  // namespace lpq::cuda
