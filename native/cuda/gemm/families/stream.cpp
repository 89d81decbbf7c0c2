// Up to 16 tokens at the speed of the weights' bytes (stream.cuh): blocks own strips of a slice of K.
#include <cstdio>

#include "cuda/gemm/families/packed_problem.h"
#include "cuda/gemm/families/stream.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

constexpr int kMostStreamTokens = 16;

struct StreamCut {
  std::string kernel;
  int tiles = 1, sets = 1;
  unsigned shared = 0;
  double microseconds = 0;
  StreamArgs args{};
};

// Clusters that the device holds at once: a block of this kernel takes a whole multiprocessor's registers, so shared
// memory does not come into it.
int stream_clusters(CudaExec& exec, const std::string& kernel, int slices) {
  return exec.resident_clusters(kernel, 32 * kStreamWarps, 0, slices);
}

// Whether the kernel with the fast loop and one group a packed block takes the product: `_s`, else `_x`.
bool lean(const PackedProblem& p) { return stream_simple(p.args, p.bits <= 2 ? 2 : 1) && p.args.groups_per_block == 1; }

// A kernel and a number of tokens, of which slicings of K are tried.
struct StreamModel {
  const GemmPackedArgs& a;
  int64_t m, tiles, x_tiles, unit;
  double block;  // microseconds of a packed block: its bytes, or the slow loop's instructions

  StreamModel(const PackedProblem& p, int64_t tokens) : a(p.args), m(tokens), tiles(m <= 8 ? 1 : 2) {
    // Activations in two parts (type_and_activations): twice as much to stage, and to multiply with.
    x_tiles = p.name.ends_with("_wide") ? 2 * tiles : tiles;
    const int64_t blocks_a_unit = p.bits <= 2 ? 2 : 1;  // kStreamUnit, which stay whole where the fast loop takes them
    const bool fast = stream_simple(a, static_cast<int>(blocks_a_unit));
    unit = fast ? blocks_a_unit : 1;
    // The slow loop takes about 230 instructions, 300 for 16 tokens, of which 1.65 go out in a cycle; by count, not
    // measured.
    const double slow = fast ? 0 : (tiles == 1 ? 0.08 : 0.105) * (a.groups_per_block == 4 || a.zero_kind ? 1.4 : 1);
    block = std::max(0.0284 * (512 * p.bits + p.side_bytes) / 1000, slow);
  }

  // Microseconds of an H200, fitted to 72 cuts of six shapes (docs/internals/kernels/stream.md); only their proportions
  // matter:
  //  - the busiest block streams its packed blocks with their scales at a multiprocessor's share of the memory's speed;
  //  - before that it stages its slice of the activations: work for each packed block along K and tile, and bytes from
  //    L2;
  //  - at the end it adds up the strips' parts of a set in shared memory, 1 KiB a strip and tile; clusters begin and
  //    end together, eight blocks less easily than two;
  //  - or, where the parts go through the workspace, all of them are written, and read by whoever comes last with a
  //    strip. That costs more than the bytes do, since a warp waits for its atomic and for what others wrote.
  double microseconds(int64_t slices, bool workspace, int64_t strips, int64_t k_most, double waves) const {
    const double staged = static_cast<double>(k_most);
    const double megabytes = static_cast<double>(a.n_blocks * slices * tiles) / 1024;  // of parts in the workspace
    return 3.2 +
           waves * (block * static_cast<double>(strips * k_most) + 0.037 * staged * static_cast<double>(x_tiles) +
                    0.0033 * staged * static_cast<double>(m)) +
           (workspace ? 1.9 + 0.55 * megabytes + 0.04 * megabytes * megabytes
                      : waves * 0.0335 * static_cast<double>(strips * tiles) + (slices == 1  ? 0
                                                                                : slices < 8 ? 0.25
                                                                                             : 0.57));
  }
};

// Of all slicings of K the one that should end first. `slices`, `reduce` and `blocks` override. None fits where a slice
// of the activations does not fit shared memory.
std::optional<StreamCut> cut_stream(const PackedProblem& p, int64_t m, CudaExec& exec) {
  const GemmPackedArgs& a = p.args;
  const StreamModel model(p, m);
  const std::string kernel = p.name + (lean(p) ? "_s" : "_x") + std::to_string(model.tiles), &reduce = p.wish.reduce;
  const int64_t asked = p.wish.slices, running = p.wish.blocks ? p.wish.blocks : exec.device().multiprocessors;
  require(asked <= a.k_blocks, "slices is not between 1 and the packed blocks along K");
  std::optional<StreamCut> best;
  for (const bool workspace : {false, true}) {
    if (!reduce.empty() && workspace != (reduce == "global")) continue;
    for (int64_t slices = asked ? asked : 1; slices <= (asked ? asked : std::min<int64_t>(a.k_blocks, 32)); ++slices) {
      const bool power = (slices & (slices - 1)) == 0;
      if (workspace ? slices == 1 && reduce.empty() : !power || slices > 8) continue;
      if (slices * model.unit > a.k_blocks) continue;
      const int64_t k_most = div_up(a.k_blocks / model.unit, slices) * model.unit;
      int64_t sets = std::clamp<int64_t>(running / slices, 1, a.n_blocks);
      if (!workspace && slices > 1)
        sets = std::min<int64_t>(sets, stream_clusters(exec, kernel, static_cast<int>(slices)));
      if (sets < 1) continue;
      // Parts of many strips do not fit: then more blocks than run at once.
      StreamShared places{};
      int64_t strips = div_up(a.n_blocks, sets);
      const auto fits = [&] {
        places = stream_shared(static_cast<int>(model.tiles), static_cast<int>(model.x_tiles), kStreamWarps,
                               static_cast<int>(k_most), a.groups_per_block, static_cast<int>(strips),
                               workspace ? 0 : static_cast<int>(slices));
        return places.total <= exec.device().shared_per_block;
      };
      while (!fits() && strips > 1) strips = div_up(strips, 2);
      if (!fits()) continue;
      const int64_t at_once = sets;
      sets = div_up(a.n_blocks, strips);
      const double time =
          model.microseconds(slices, workspace, strips, k_most, static_cast<double>(div_up(sets, at_once)));
      if (best && time >= best->microseconds) continue;
      best = StreamCut{kernel, static_cast<int>(model.tiles), static_cast<int>(sets),
                       static_cast<unsigned>(places.total), time};
      best->args = {.slices = static_cast<int>(slices),
                    .sets = best->sets,
                    .k_most = static_cast<int>(k_most),
                    .strips_most = static_cast<int>(strips),
                    .workspace = workspace,
                    .overlap = 0};
    }
  }
  return best;
}

std::string how(const StreamArgs& a) {
  const std::string sliced = a.slices == 1 ? "K whole"
                                           : "K in " + std::to_string(a.slices) + " slices added up " +
                                                 (a.workspace ? "through the workspace" : "in clusters");
  return std::to_string(a.sets) + " sets of at most " + std::to_string(a.strips_most) + " strips, " + sliced;
}

// First wherever its fast loop takes the product; with the slow one (zero points of groups) by its time.
Answer plan_stream(const PackedProblem& p, CudaExec& exec) {
  if (!exec.has_kernel(p.name + "_s1")) return "there is no streaming kernel for this type";
  if (!p.asked() && p.op.m > kMostStreamTokens)
    return "it takes " + std::to_string(kMostStreamTokens) + " tokens at a time, and there are more";
  const std::optional<StreamCut> cut = cut_stream(p, std::min<int64_t>(p.op.m, kMostStreamTokens), exec);
  if (!cut) return "no slicing of K fits the streaming kernel";
  return Plan{lean(p) ? 0 : 1, cut->microseconds, *cut, exec.rehearsing() ? how(cut->args) : ""};
}

void launch_stream(const PackedProblem& p, const Plan& plan, CudaExec& exec) {
  const PackedRows rows(p, 8, exec);
  std::optional<StreamCut> cut = std::any_cast<const StreamCut&>(plan.cut);
  for (int64_t first = 0; first < p.op.m; first += kMostStreamTokens) {
    const int64_t tokens = std::min<int64_t>(kMostStreamTokens, p.op.m - first);
    if (first > 0 && tokens < kMostStreamTokens) cut = cut_stream(p, tokens, exec);
    require(cut.has_value(), "no slicing of K fits the streaming kernel");
    GemmPackedArgs a = rows.from(first, tokens);
    a.warps_n = 1;
    StreamArgs args = cut->args;
    args.overlap = p.wish.overlap && rows.untouched;
    std::optional<Scratch> partial;
    if (args.workspace)
      partial.emplace(
          exec.scratch(static_cast<size_t>(a.n_blocks) * static_cast<size_t>(args.slices * cut->tiles) * 1024));
    a.partial = partial ? partial->as<float>() : nullptr;
    a.counters = exec.counters(static_cast<size_t>(a.n_blocks));
    const bool cluster = args.slices > 1 && !args.workspace;
    exec.launch_clusters(cut->kernel, {cut->sets * args.slices}, {32 * kStreamWarps}, cut->shared,
                         cluster ? args.slices : 1, args.overlap != 0, a, args);
    exec.wrote(p.op.y);
  }
}

}  // namespace

const Family<PackedProblem> kStreamFamily{"stream", {.wgmma = true}, plan_stream, launch_stream};

}  // namespace lpq::cuda
