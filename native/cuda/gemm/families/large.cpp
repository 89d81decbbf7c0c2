#include <algorithm>
#include <optional>

#include "cuda/gemm/families/large_launch.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

// lpq_gemm_TYPE -> lpq_large_TYPE_tT
std::string large_name(const std::string& name, int64_t tiles) {
  return "lpq_large_" + name.substr(9) + "_t" + std::to_string(tiles);
}

}  // namespace

bool has_gemm_large(CudaExec& exec, const std::string& name, const GemmPackedArgs& a, bool bf16) {
  return exec.has_kernel(large_name(name, 16)) && (bf16 || !a.scale_bf16);
}

// Tiles of 32, 64 or 128 tokens: the least that hold m (where the device's build has them), fewer where shared memory
// does not hold their stages (8.6 and 8.9 with seven bits or more). Whole tiles where their waves are at least 92 %
// full, else equal runs of steps, which cost two parts of a tile a block through the workspace.
void gemm_large(CudaExec& exec, const std::string& name, int bits, GemmPackedArgs a, const Params& params) {
  const int64_t wished = params.integer("tokens", 0), stripes = params.integer("stripes", -1);
  require(wished == 0 || wished == 32 || wished == 64 || wished == 128, "tokens is not 32, 64 or 128");
  const auto shared_of = [&](int64_t tiles) { return large_shared(bits, static_cast<int>(tiles)); };
  int64_t tiles = wished ? wished / 8 : a.m <= 32 ? 4 : a.m <= 64 ? 8 : 16;
  while (tiles < 16 && !exec.has_kernel(large_name(name, tiles))) tiles *= 2;
  while (!wished && tiles > 4 && shared_of(tiles) > exec.device().shared_per_block) tiles /= 2;
  require(shared_of(tiles) <= exec.device().shared_per_block, "tiles of this many tokens do not fit shared memory");
  const unsigned shared = static_cast<unsigned>(shared_of(tiles));
  const std::string kernel = large_name(name, tiles);
  const int64_t blocks = params.integer(
      "blocks", int64_t{exec.device().multiprocessors} * std::max(1, exec.occupancy(kernel, 32 * kLargeWarps, shared)));
  require(blocks >= 1, "blocks is not 1 or more");
  if (exec.rehearsing()) exec.because("Tiles of 256 columns by " + std::to_string(8 * tiles) + " tokens.");
  LargeArgs l{};
  l.token_tiles = static_cast<int>(div_up(a.m, 8 * tiles));
  l.band = std::min(l.token_tiles, 8);
  l.vectors = a.n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  a.strips = static_cast<int>(div_up(a.n_blocks, kLargeWarps));
  a.steps = a.k_blocks;
  const int64_t all = int64_t{a.strips} * l.token_tiles, waves = div_up(all, blocks);
  const bool whole = stripes >= 0 ? stripes == 0 : all * 100 >= waves * blocks * 92;
  require(whole || all * a.steps < int64_t{1} << 31, "there are too many tiles for equal runs");
  int64_t grid = std::min(all, blocks);
  std::optional<Scratch> partial;
  if (!whole) {
    l.per = static_cast<int>(div_up(all * a.steps, blocks));
    grid = div_up(all * a.steps, l.per);
    partial.emplace(exec.scratch(size_t{2} * static_cast<size_t>(grid * kLargeWarps * tiles) * 1024));
    a.partial = partial->as<float>();
    a.counters = exec.counters(static_cast<size_t>(all));
  }
  exec.launch(kernel, {grid}, {32 * kLargeWarps}, shared, a, l);
}

}  // namespace lpq::cuda
