// gemm_comet.
#pragma once
#include "ops/gemm_act.h"
#include "ops/w4ax.h"

namespace lpq::ops {

// gemm_w4ax of activations as quantize_comet leaves them (x8, x4, x_scales, blocks) and weights of 4 bits u8
// [ceil(N/16), K/128, 1024] (layout comet, docs/internals/layouts/comet.md) with w_scales f32 [K/128, N'], N' >= N a
// multiple of 4: the same sums, y f32, f16 or bf16 [M,N], bias f32 [N]. With the flag groupScales w_scales is f32 [N],
// and a block of 128 columns has a whole factor from -15 to 16 besides (a two-level grid, ops/gemm_act.h), the input
// group_scales i8 [K/128, N'], N' >= N a multiple of 16: y = s sw + bias, over blocks b s = fma(P_b, sx_b, s), P_b the
// exact integer sum of x (code factor), at most 127 * 128 * 128 < 2^24. A factor that is not of those fails with
// LPQ_NATIVE_ARGUMENT on the CPU; on CUDA its rows are wrong. On CUDA items that blocks share add the sums of
// runs of blocks of K, and up to 16 tokens 16 warps those of every 16th block, in a fixed order; x8, x4, w and scales
// start at multiples of 16 bytes. kernel: few (up to 16 tokens), act8 (which widens blocks of x4 first) or mma. Of the
// settings few takes none, mma tokens and shared, act8 all others.
struct GemmComet : Arguments {
  const Tensor& y = output("y", kFloats, {-1, -1});
  int64_t m = y.dim(0), n = y.dim(1);
  const Tensor &x8 = input("x8"), &x4 = input("x4"), &x_scales = input("x_scales");
  const Tensor& blocks = input("blocks", {i32}, {-1});
  W4axBlocks x = W4axBlocks::of(x8, x4, blocks, m, blocks.dim(0));
  const Tensor& w = input("w", {u8}, {parts_of(n, 16), x.count, 1024});
  bool two_level = flag("groupScales");
  const Tensor& w_scales = input("w_scales", {f32});
  const Tensor* group_scales = input_if(two_level, "group_scales", {i8}, {x.count, -1});
  const Tensor* bias = last_input("bias", {f32}, {n});
  GemmSettings settings = GemmSettings::read(
      *this, {"tokens", "width", "blocks", "stages", "reduce", "overlap", "shared"}, {"few", "act8", "mma"});

  explicit GemmComet(const Call& call) : Arguments(call, "gemm_comet") {
    require_gemm_sizes(m, n, x.count * 128);
    require_tensor(x_scales, "x_scales", f32, {x.count, up_to(m, 4)});
    require_shape(w_scales, "w_scales", two_level ? Dims{n} : Dims{x.count, -1});
    if (two_level) require_rows_of_factors(*group_scales, n);
    else require_rows_of_scales(w_scales, n);
    done();
  }
};

}  // namespace lpq::ops
