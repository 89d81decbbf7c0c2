// gemm_act.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

// y = x Wᵀ + bias of codes, y f32, f16 or bf16 [M,N], bias f32 [N].
//   x i8 or f8_e4m3 [M,K], K a multiple of 16; x_scales f32 [M]
//   w of x's dtype [N,K], w_scales f32 [N]: y = P (sx sw) + bias, P the sum of products. i8: exact, then rounded to
//   fp32 (K below 131072). f8_e4m3: sums of 128 columns are added in fp32; the tensor core has those within 2^-13 of
//   the largest product for each product, the CPU exactly or w u8 [ceil(N/16), ceil(K/128), 1024], codes of 4 bits in
//   the layout comet (docs/internals/layouts/comet.md), w_scales f32 [ceil(K/128), N'], N' >= N a multiple of 4: y = s
//   sx + bias, over groups g s = fma(P_g, sw_g, s), P_g as above
// On CUDA items that blocks share add the sums of runs of groups; x, w and scales of groups start at multiples of 16
// bytes. `cluster` 2: pairs of blocks fetch weights for each other.
struct GemmAct {
  const Tensor &x, &x_scales, &w, &w_scales;
  const Tensor* bias;
  const Tensor& y;
  bool integer, packed;
  int64_t m, n, k, k_blocks;
  GemmSettings settings;

  static GemmAct parse(const Call& call) {
    Arguments a(call, "gemm_act");
    const Tensor& x = a.input("x", {DType::i8, DType::f8_e4m3}, {-1, -1});
    const Tensor& y = a.output("y", {DType::f32, DType::f16, DType::bf16}, {x.dim(0), -1});
    const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1), k_blocks = parts_of(k, 128);
    require_gemm_sizes(m, n, k);
    require(k % 16 == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 16");
    const Tensor &x_scales = a.input("x_scales", {DType::f32}, {m}), &w = a.input("w"), &w_scales = a.input("w_scales");
    const bool integer = x.dtype == DType::i8, packed = w.rank() == 3;
    if (packed) {
      require_tensor(w, "w", DType::u8, {parts_of(n, 16), k_blocks, 1024});
      require_tensor(w_scales, "w_scales", DType::f32, {k_blocks, -1});
      require(w_scales.dim(1) >= n && w_scales.dim(1) % 4 == 0,
              "rows of w_scales are " + std::to_string(w_scales.dim(1)) + " long, not " + std::to_string(up_to(n, 4)));
    } else {
      require_tensor(w, "w", x.dtype, {n, k});
      require_tensor(w_scales, "w_scales", DType::f32, {n});
      // 128 * 128 * (2^17 - 1) < 2^31
      require(!integer || k < 131072, "sums of " + std::to_string(k) + " products of s8 may not fit 32 bits");
    }
    const Tensor* bias = a.input_if(a.left() > 0, "bias", {DType::f32}, {n});
    const GemmSettings settings = GemmSettings::read(a, {"tokens", "cluster", "stages", "shared"});
    a.done();
    return {x, x_scales, w, w_scales, bias, y, integer, packed, m, n, k, k_blocks, settings};
  }
};

}  // namespace lpq::ops
