// Products with activations of 8 bits (act8.cuh), any number of tokens. Of W4Ax blocks of 4 bits are widened before.
#include "cuda/gemm/families/act8_plan.h"
#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/families/w4ax_problem.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

uint64_t u64(int64_t v) { return static_cast<uint64_t>(v); }
uint32_t u32(int64_t v) { return static_cast<uint32_t>(v); }

std::string kernel_of(const Act8Kind& kind, const ScaledForm& form) {
  return std::string("lpq_gemm_act8_") + kind.name + "_" + form.name();
}
const Act8Kind& kind_of(const W4axProblem& p) {
  for (const Act8Kind& kind : kAct8Kinds)
    if (std::string(kind.name) == p.kind) return kind;
  throw Failure("LPQ_NATIVE_ARGUMENT", std::string("no kernel multiplies codes of kind ") + p.kind);
}

Answer plan_act8(const W4axProblem& p, CudaExec& exec) {
  if (!can_describe_tensors()) return "the driver cannot describe tensors";
  const Act8Kind& kind = kind_of(p);
  const DeviceFacts& device = exec.device();
  const auto has = [&](const ScaledForm& form) { return exec.has_kernel(kernel_of(kind, form)); };
  if (!has(kind.forms[0])) return "there is no kernel for these codes";
  auto cut = choose_act8(device.multiprocessors, device.shared_per_block, kind, p.m, p.n, div_up(p.k, 128), p.wish, has,
                         [&](const ScaledForm& form, int cluster) {
                           return exec.resident_clusters(kernel_of(kind, form), scaled_threads(form.pairs),
                                                         static_cast<unsigned>(device.shared_per_block), cluster);
                         });
  require(cut.has_value(), "no tiling of the kernel of 8-bit activations fits");
  cut->args.vectors = vector_rows(p.y.raw(), p.n);
  return Plan{0, cut->nanoseconds / 1000, *cut, exec.rehearsing() ? scaled_cut_in_words(*cut) : ""};
}

// x: [m, k] bytes.
Act8Maps describe(const W4axProblem& p, const void* x, const ScaledPlan& cut) {
  const int64_t rows = int64_t{kBlockN} * cut.form.width(), k_blocks = div_up(p.k, 128);
  Act8Maps maps{};
  maps.x =
      describe_boxes(x, kMap8, {u64(p.k), u64(p.m), 1}, {u64(p.k), u64(p.k * p.m)}, {128, u32(cut.args.rows), 1}, true);
  if (p.nibbles)
    maps.weights = describe_boxes(p.w.raw(), kMap64, {128, u64(k_blocks), u64(p.w.dim(0))},
                                  {1024, u64(k_blocks * 1024)}, {128, 1, u32(rows / 16)}, false);
  else
    maps.weights = describe_boxes(p.w.raw(), kMap8, {u64(p.k), u64(p.n), 1}, {u64(p.k), u64(p.k * p.n)},
                                  {128, u32(rows), 1}, true);
  if (kind_of(p).token_scales) {
    const int64_t pitch = p.x_scales.dim(1);
    maps.x_scales = describe_boxes(p.x_scales.raw(), kMap32, {u64(pitch), u64(k_blocks), 1},
                                   {u64(pitch * 4), u64(pitch * 4 * k_blocks)}, {u32(cut.args.rows), 1, 1}, false);
  }
  const int bytes = kind_of(p).factor_bytes;
  if (bytes > 0) {
    const Tensor& factors = p.factors ? *p.factors : p.w_scales;
    // Two of f32 are an element.
    const int64_t width = factors.dim(1), pair = bytes == 4 ? 2 : 1;
    maps.factors = describe_boxes(factors.raw(), bytes == 4 ? kMap64 : kMap8, {u64(width / pair), u64(k_blocks), 1},
                                  {u64(width * bytes), u64(width * bytes * k_blocks)}, {u32(rows / pair), 1, 1}, false);
  }
  return maps;
}

// Codes s8 [m, k] of activations by blocks of 8 and 4 bits: those that there are, or a copy.
struct WideRows {
  const void* x;
  std::optional<Scratch> made;
  WideRows(const W4axProblem& p, CudaExec& exec) : x(p.x.raw()) {
    if (!p.blocks || p.blocks->fours == 0) return;
    const ops::W4axBlocks& from = *p.blocks;
    made.emplace(exec.scratch(static_cast<size_t>(p.m * p.k)));
    x = made->as<signed char>();
    const long long tokens = p.m;
    exec.launch("lpq_widen_blocks", {stride_blocks(exec, p.m * from.count, 8)}, {256}, 0, from.x8.data<signed char>(),
                from.x4.data<unsigned char>(), from.blocks.data<int32_t>(), made->as<signed char>(), tokens,
                static_cast<int>(from.eights), static_cast<int>(from.fours));
  }
};

void launch_act8(const W4axProblem& p, const Plan& plan, CudaExec& exec) {
  const WideRows wide(p, exec);
  ScaledPlan cut = std::any_cast<const ScaledPlan&>(plan.cut);
  Act8Args a{};
  a.y = p.y.raw(), a.x_scales = p.x_scales.data<float>(), a.w_scales = p.w_scales.data<float>(), a.bias = p.bias_data();
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.k_blocks = static_cast<int>(div_up(p.k, 128));
  a.stages = cut.stages, a.store = p.store();
  cut.args.overlap = p.wish.overlap && exec.follows_untouched(p.w) && exec.follows_untouched(p.w_scales) &&
                     (!p.factors || exec.follows_untouched(*p.factors));
  std::optional<Scratch> partial;
  if (cut.args.shared_items > 0 && !cut.args.cluster) {
    const int64_t sums = int64_t{cut.form.tiles} * cut.form.width() * 1024;  // of a block, in bytes
    partial.emplace(share_sums(a, cut.args.shared_blocks * sums, 2 * cut.args.shared_items, exec));
  }
  exec.launch_clusters(kernel_of(kind_of(p), cut.form), {cut.blocks}, {scaled_threads(cut.form.pairs)}, cut.shared,
                       std::max(1, cut.args.cluster), cut.args.overlap != 0, a, cut.args, describe(p, wide.x, cut));
  exec.wrote(p.y);
}

}  // namespace

const Family<W4axProblem> kAct8Family{"act8", {.wgmma = true}, plan_act8, launch_act8};

}  // namespace lpq::cuda
