// gemm_act: products of activations and weights that are codes of 8 bits and fewer. Contracts: native/packed-ops.ts.
#include "cuda/gemm/families/w4ax.h"

#include "cuda/gemm/families/w4ax_few.h"
#include "cuda/gemm/families/w4ax_plan.h"
#include "cuda/gemm/tensor_maps.h"
#include "cuda/launch.h"
#include "lpq/checks.h"

namespace lpq::cuda {
namespace {

uint64_t u64(int64_t v) { return static_cast<uint64_t>(v); }
uint32_t u32(int64_t v) { return static_cast<uint32_t>(v); }

// Where a copy of the bulk engine may begin.
void require_sixteen(const Tensor& tensor, const char* name) {
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0,
          std::string(name) + " does not start at a multiple of 16 bytes");
}

ActWish wish_of(const Params& params) {
  const auto wished = [&](const char* what, int otherwise) {
    return static_cast<int>(params.integer(what, otherwise));
  };
  const ActWish wish{wished("tokens", 0), wished("cluster", 0), wished("stages", 0), wished("shared", -1)};
  require(wish.tokens == 0 || wish.tokens == 16 || wish.tokens == 32 || wish.tokens == 64 || wish.tokens == 128,
          "tokens is not 16, 32, 64 or 128");
  require(wish.cluster >= 0 && wish.cluster <= 2, "cluster is not 1 or 2");
  require(wish.stages == 0 || (wish.stages >= 2 && wish.stages <= kActStages), "stages is not between 2 and 16");
  return wish;
}

constexpr int64_t kMostRows = (int64_t{1} << 31) - 1024;

struct Product {
  const Tensor *y = nullptr, *bias = nullptr;
  int64_t m = 0, n = 0, k = 0;
};

void check_product(const Product& p) {
  require_dtype(*p.y, "y", {DType::f16, DType::bf16, DType::f32});
  require_shape(*p.y, "y", {p.m, p.n});
  if (p.bias) require_tensor(*p.bias, "bias", DType::f32, {p.n});
  require(p.m < kMostRows && p.n < kMostRows && p.k < kMostRows, "M, N or K is 2^31 or more");
}

int store_of(const Tensor& y) {
  return y.dtype == DType::f32 ? kActStoreF32 : y.dtype == DType::bf16 ? kActStoreBf16 : kActStoreF16;
}

// What all kinds have in common; `maps` lacks the boxes of activations and weights, which `describe` fills in from the
// plan.
template <class Describe>
void multiply(CudaExec& exec, const Params& params, const char* kind, bool nibbles, bool mixed, const Product& p,
              ActArgs a, const Describe& describe) {
  check_product(p);
  if (p.bias) a.bias = p.bias->data<float>();
  if (p.m == 0 || p.n == 0) return;
  require(exec.device().features.wgmma && can_describe_tensors() &&
              exec.has_kernel(std::string("lpq_gemm_act_") + kind + "_m2"),
          "gemm_act has kernels for devices of compute capability 9.0 alone, this one has " +
              compute_capability(exec.device().arch));
  ActWish wish = wish_of(params);
  const auto plan_with = [&] {
    return plan_act(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n, p.k, nibbles, mixed, wish);
  };
  auto plan = plan_with();
  const auto kernel_of = [&] { return std::string("lpq_gemm_act_") + kind + "_m" + std::to_string(plan->tiles); };
  // Blocks wait for each other's sums, so all must be resident; where a device holds fewer clusters, blocks work alone.
  if (plan && plan->cluster > 1 &&
      exec.resident_clusters(kernel_of(), kActThreads, plan->shared_bytes, plan->cluster) * plan->cluster <
          plan->blocks) {
    wish.cluster = 1;
    plan = plan_with();
  }
  require(plan.has_value(), "no tiling of gemm_act fits");
  a.y = p.y->raw();
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.k_blocks = static_cast<int>(div_up(p.k, 128));
  a.token_tiles = plan->token_tiles, a.items = plan->items, a.shared = plan->shared, a.stages = plan->stages,
  a.cluster = plan->cluster;
  a.store = store_of(*p.y);
  a.vectors = p.n % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
  std::optional<Scratch> partial;
  if (plan->shared > 0) {
    partial.emplace(
        exec.scratch(size_t{2} * static_cast<size_t>(plan->blocks) * static_cast<size_t>(8 * plan->tiles) * 1024));
    a.partial = partial->as<float>();
    a.counters = exec.counters(size_t{2} * static_cast<size_t>(plan->shared * plan->cluster));
  }
  ActMaps maps{};
  describe(maps, *plan);
  exec.launch_clusters(kernel_of(), {plan->blocks}, {kActThreads}, plan->shared_bytes, plan->cluster, false, a, maps);
}

// Rows of `bytes` bytes, `pitch` apart, in boxes of `box` bytes of `rows` rows.
TensorMap byte_rows(const void* from, int64_t bytes, int64_t pitch, int64_t count, int64_t box, int64_t rows,
                    bool swizzle) {
  return describe_boxes(from, kMapByte, {u64(bytes), u64(count), 1}, {u64(pitch), u64(pitch * count)},
                        {u32(box), u32(rows), 1}, swizzle);
}
// f32 [rows, pitch] in boxes of `box` of a row.
TensorMap float_rows(const Tensor& t, int64_t box) {
  const int64_t pitch = t.dim(1);
  return describe_boxes(t.raw(), kMapWide, {u64(pitch / 2), u64(t.dim(0)), 1},
                        {u64(pitch * 4), u64(pitch * t.dim(0) * 4)}, {u32(box / 2), 1, 1}, false);
}
TensorMap packed_rows(const Tensor& w) {
  const int64_t kb = w.dim(1);
  return describe_boxes(w.raw(), kMapWide, {128, u64(kb), u64(w.dim(0))}, {1024, u64(kb * 1024)}, {128, 1, 8}, false);
}

void gemm_act(Call& call, CudaExec& exec) {
  const Tensor &x = call.input(0), &x_scales = call.input(1), &w = call.input(2), &w_scales = call.input(3),
               &y = call.output(0);
  require_dtype(x, "x", {DType::i8, DType::f8_e4m3});
  require_shape(x, "x", {-1, -1});
  Product p{&y, call.in.size() > 4 ? &call.input(4) : nullptr, x.dim(0), 0, x.dim(1)};
  require(p.k > 0 && p.k % 16 == 0, "x has " + std::to_string(p.k) + " columns, which is no multiple of 16");
  require_tensor(x_scales, "x_scales", DType::f32, {p.m});
  require_sixteen(x, "x");
  require_sixteen(w, "w");
  ActArgs a{};
  a.x_scales = x_scales.data<float>();
  const auto activations = [&](ActMaps& maps, const ActPlan& plan) {
    maps.x = byte_rows(x.raw(), p.k, p.k, p.m, 128, 8 * plan.tiles, true);
  };
  if (w.rank() == 3) {
    const int64_t kb = div_up(p.k, 128);
    require_tensor(w, "w", DType::u8, {-1, kb, 1024});
    p.n = y.rank() == 2 ? y.dim(1) : 0;
    require(w.dim(0) == div_up(p.n, 16),
            "w has " + std::to_string(w.dim(0)) + " blocks of 16 rows, y " + std::to_string(p.n) + " columns");
    require_tensor(w_scales, "w_scales", DType::f32, {kb, -1});
    require(
        w_scales.dim(1) >= p.n && w_scales.dim(1) % 4 == 0,
        "rows of w_scales are " + std::to_string(w_scales.dim(1)) + " long, not " + std::to_string(div_up(p.n, 4) * 4));
    require_sixteen(w_scales, "w_scales");
    return multiply(exec, call.params, x.dtype == DType::i8 ? "w4" : "w4f8", true, false, p, a,
                    [&](ActMaps& maps, const ActPlan& plan) {
                      activations(maps, plan);
                      maps.weights = packed_rows(w);
                      maps.w_scales = float_rows(w_scales, kActRows);
                    });
  }
  require_dtype(w, "w", {x.dtype});
  require_shape(w, "w", {-1, p.k});
  p.n = w.dim(0);
  require_tensor(w_scales, "w_scales", DType::f32, {p.n});
  a.w_scales = w_scales.data<float>();
  const bool integer = x.dtype == DType::i8;
  // 128 * 128 * (2^17 - 1) < 2^31
  require(!integer || p.k < 131072, "sums of " + std::to_string(p.k) + " products of s8 may not fit 32 bits");
  multiply(exec, call.params, integer ? "i8" : "f8", false, false, p, a, [&](ActMaps& maps, const ActPlan& plan) {
    activations(maps, plan);
    maps.weights = byte_rows(w.raw(), p.k, p.k, p.n, 128, 128, true);
  });
}

// W4Ax by mma.sync, for devices without wgmma (w4ax_mixed.cuh).
void multiply_mixed(CudaExec& exec, const ActWish& wish, const Product& p, MixedArgs a) {
  require(wish.tokens != 32, "tiles of this kernel have 16, 64 or 128 tokens");
  const MixedPlan plan = plan_mixed(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n, a.k_blocks,
                                    wish.tokens, wish.shared);
  require(plan.stages >= 2, "no tiling of gemm_comet fits");
  a.y = p.y->raw();
  a.bias = p.bias ? p.bias->data<float>() : nullptr;
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n);
  a.token_tiles = plan.token_tiles, a.items = plan.items, a.shared = plan.shared, a.stages = plan.stages;
  a.store = store_of(*p.y);
  std::optional<Scratch> partial;
  if (plan.shared > 0) {
    partial.emplace(exec.scratch(size_t{2} * static_cast<size_t>(plan.blocks) * static_cast<size_t>(8 * plan.tiles) *
                                 kMixedRows * sizeof(float)));
    a.partial = partial->as<float>();
    a.counters = exec.counters(static_cast<size_t>(plan.shared));
  }
  exec.because("A device without wgmma: W4Ax by mma.sync, INT4 blocks on INT4 tensor cores where the device has them.");
  exec.launch("lpq_gemm_mixed_t" + std::to_string(plan.tiles), {plan.blocks}, {kMixedThreads}, plan.shared_bytes, a);
}

// W4Ax of up to 16 tokens (w4ax_few.cuh). `still`: what the kernel reads before the operation before has ended is not
// what that wrote.
void multiply_few(CudaExec& exec, const Product& p, const MixedArgs& of, bool still) {
  const FewPlan plan = plan_few(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n, of.k_blocks);
  require(plan.shared_bytes > 0, "no tiling of gemm_comet fits");
  FewArgs a{};
  static_cast<MixedArgs&>(a) = of;
  a.y = p.y->raw();
  a.bias = p.bias ? p.bias->data<float>() : nullptr;
  a.m = static_cast<int>(p.m), a.n = static_cast<int>(p.n), a.store = store_of(*p.y);
  a.rows = plan.rows, a.at_once = plan.at_once, a.split = plan.split, a.resident = plan.resident, a.overlap = still;
  exec.because("Up to 16 tokens: W4Ax at the speed of its weights, warps of a block sharing K.");
  exec.launch_clusters("lpq_gemm_few_t" + std::to_string(plan.tiles) + "_r" + std::to_string(plan.kernel_rows),
                       {plan.blocks}, {32 * kFewWarps}, plan.shared_bytes, 1, still, a);
  exec.wrote(*p.y);
}

// W4Ax: activations of 8 and of 4 bits by blocks of 128 channels.
void gemm_comet(Call& call, CudaExec& exec) {
  const Tensor &x8 = call.input(0), &x4 = call.input(1), &x_scales = call.input(2), &blocks = call.input(3),
               &w = call.input(4), &w_scales = call.input(5), &y = call.output(0);
  require_tensor(blocks, "blocks", DType::i32, {-1});
  const int64_t kb = blocks.dim(0);
  require_shape(y, "y", {-1, -1});
  Product p{&y, call.in.size() > 6 ? &call.input(6) : nullptr, y.dim(0), y.dim(1), kb * 128};
  require_tensor(x8, "x8", DType::i8, {p.m, -1});
  require_tensor(x4, "x4", DType::u8, {p.m, -1});
  require(kb > 0 && x8.dim(1) % 128 == 0 && x4.dim(1) % 64 == 0 && x8.dim(1) / 128 + x4.dim(1) / 64 == kb,
          "x8 and x4 hold " + std::to_string(x8.dim(1)) + " and " + std::to_string(x4.dim(1)) +
              " bytes a token, which are not " + std::to_string(kb) + " blocks");
  require_tensor(x_scales, "x_scales", DType::f32, {kb, div_up(p.m, 4) * 4});
  require_tensor(w, "w", DType::u8, {div_up(p.n, 16), kb, 1024});
  require_tensor(w_scales, "w_scales", DType::f32, {kb, -1});
  require(
      w_scales.dim(1) >= p.n && w_scales.dim(1) % 4 == 0,
      "rows of w_scales are " + std::to_string(w_scales.dim(1)) + " long, not " + std::to_string(div_up(p.n, 4) * 4));
  require_sixteen(x8, "x8"), require_sixteen(x4, "x4"), require_sixteen(x_scales, "x_scales"), require_sixteen(w, "w"),
      require_sixteen(w_scales, "w_scales");
  const std::string kernel = call.params.text("kernel", "");
  require(kernel.empty() || kernel == "few" || kernel == "wgmma" || kernel == "mma", "kernel is not few, wgmma or mma");
  const ActWish wish = wish_of(call.params);
  const bool cut = wish.tokens || wish.cluster || wish.stages || wish.shared >= 0, wide = exec.device().features.wgmma;
  require(kernel != "few" || (p.m <= kFewTokens && exec.device().features.wgmma && !cut),
          "the kernel of few tokens takes up to 16, on devices of 9.0, and has no cuts to choose from");
  const bool few =
      kernel == "few" ||
      (kernel.empty() && exec.device().features.wgmma && p.m <= kFewTokens && !cut &&
       exec.has_kernel("lpq_gemm_few_t1_r2") &&
       few_is_faster(plan_few(exec.device().multiprocessors, exec.device().shared_per_block, p.m, p.n, kb)));
  if (few || kernel == "mma" || (kernel.empty() && !wide)) {
    MixedArgs a{};
    a.x8 = x8.data<signed char>(), a.x4 = x4.data<unsigned char>(), a.w = w.data<unsigned char>();
    a.x_scales = x_scales.data<float>(), a.w_scales = w_scales.data<float>(), a.blocks = blocks.data<int32_t>();
    a.k_blocks = static_cast<int>(kb), a.eights = static_cast<int>(x8.dim(1) / 128),
    a.fours = static_cast<int>(x4.dim(1) / 64);
    a.x_pitch = static_cast<int>(x_scales.dim(1)), a.w_pitch = static_cast<int>(w_scales.dim(1));
    check_product(p);
    if (p.m == 0 || p.n == 0) return;
    if (few)
      return multiply_few(
          exec, p, a, exec.follows_untouched(w) && exec.follows_untouched(w_scales) && exec.follows_untouched(blocks));
    return multiply_mixed(exec, wish, p, a);
  }
  ActArgs a{};
  a.blocks = blocks.data<int32_t>();
  multiply(exec, call.params, "w4ax", true, true, p, a, [&](ActMaps& maps, const ActPlan& plan) {
    // Of a precision that no block has, the other's bytes are described, and never read.
    const Tensor &eight = x8.dim(1) ? x8 : x4, &four = x4.dim(1) ? x4 : x8;
    maps.x = byte_rows(eight.raw(), eight.dim(1), eight.dim(1), p.m, 128, 8 * plan.tiles, true);
    maps.x4 = byte_rows(four.raw(), four.dim(1), four.dim(1), p.m, 64, 8 * plan.tiles, false);
    maps.weights = packed_rows(w);
    maps.w_scales = float_rows(w_scales, kActRows);
    maps.x_scales = float_rows(x_scales, 8 * plan.tiles);
  });
}

}  // namespace
LPQ_CUDA_OP(gemm_act, "gemm_act");
LPQ_CUDA_OP(gemm_comet, "gemm_comet");
}  // namespace lpq::cuda
