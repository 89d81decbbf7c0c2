// gemm_comet.
#pragma once
#include "ops/w4ax.h"

namespace lpq::ops {

// gemm_w4ax of activations as quantize_comet leaves them (x8, x4, x_scales, blocks) and weights of 4 bits u8
// [ceil(N/16), K/128, 1024] (layout comet, docs/internals/layouts/comet.md) with w_scales f32 [K/128, N'], N' >= N a
// multiple of 4: the same sums, y f32, f16 or bf16 [M,N], bias f32 [N]. On CUDA items that blocks share add the sums of
// runs of blocks of K, and up to 16 tokens 16 warps those of every 16th block, in a fixed order; x8, x4, w and scales
// start at multiples of 16 bytes. kernel: few (up to 16 tokens), wgmma or mma. Of the settings few takes none, mma
// tokens and shared.
struct GemmComet {
  W4axBlocks x;
  const Tensor &x_scales, &w, &w_scales;
  const Tensor* bias;
  const Tensor& y;
  int64_t m, n;
  GemmSettings settings;

  static GemmComet parse(const Call& call) {
    Arguments a(call, "gemm_comet");
    const Tensor& y = a.output("y", {DType::f32, DType::f16, DType::bf16}, {-1, -1});
    const int64_t m = y.dim(0), n = y.dim(1);
    const Tensor &x8 = a.input("x8"), &x4 = a.input("x4"), &x_scales = a.input("x_scales"),
                 &blocks = a.input("blocks", {DType::i32}, {-1});
    const W4axBlocks x = W4axBlocks::of(x8, x4, blocks, m, blocks.dim(0));
    require_gemm_sizes(m, n, x.count * 128);
    require_tensor(x_scales, "x_scales", DType::f32, {x.count, up_to(m, 4)});
    const Tensor &w = a.input("w", {DType::u8}, {parts_of(n, 16), x.count, 1024}),
                 &w_scales = a.input("w_scales", {DType::f32}, {x.count, -1});
    require(w_scales.dim(1) >= n && w_scales.dim(1) % 4 == 0,
            "rows of w_scales are " + std::to_string(w_scales.dim(1)) + " long, not " + std::to_string(up_to(n, 4)));
    const Tensor* bias = a.input_if(a.left() > 0, "bias", {DType::f32}, {n});
    const GemmSettings settings =
        GemmSettings::read(a, {"tokens", "cluster", "stages", "shared"}, {"few", "wgmma", "mma"});
    a.done();
    return {x, x_scales, w, w_scales, bias, y, m, n, settings};
  }
};

}  // namespace lpq::ops
