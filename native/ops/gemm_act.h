// gemm_act.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

inline void require_rows_of_scales(const Tensor& w_scales, int64_t n) {
  require(w_scales.dim(1) >= n && w_scales.dim(1) % 4 == 0,
          "rows of w_scales are " + std::to_string(w_scales.dim(1)) + " long, not " + std::to_string(up_to(n, 4)));
}

inline void require_rows_of_factors(const Tensor& group_scales, int64_t n) {
  require(
      group_scales.dim(1) >= n && group_scales.dim(1) % 16 == 0,
      "rows of group_scales are " + std::to_string(group_scales.dim(1)) + " long, not " + std::to_string(up_to(n, 16)));
}

// y = x Wᵀ + bias of codes, y f32, f16 or bf16 [M,N], bias f32 [N].
//   x i8 or f8_e4m3 [M,K], K a multiple of 16; x_scales f32 [M]
//   w one of
//   - of x's dtype [N,K], w_scales f32 [N]: y = P (sx sw) + bias, P the sum of products. i8: exact, then rounded to
//     fp32 (K below 131072). f8_e4m3: sums of 128 columns are added in fp32; the tensor core has those within 2^-13 of
//     the largest product for each product, the CPU exactly
//   - u8 [ceil(N/16), ceil(K/128), 1024], codes of 4 bits in the layout comet (docs/internals/layouts/comet.md),
//     w_scales f32 [ceil(K/128), N'], N' >= N a multiple of 4: y = s sx + bias, over groups g s = fma(P_g, sw_g, s),
//     P_g as above
//   - the same codes and w_scales f32 [N], x i8: y = P (sx sw) + bias, P exact as above. With the flag groupScales a
//     group of 128 columns has a whole factor from -15 to 16 besides (a two-level grid: Lin et al., QServe,
//     arXiv:2405.04532, section 4.2), the input group_scales i8 [ceil(K/128), N'], N' >= N a multiple of 16, and P sums
//     x (code factor). A factor that is not of those fails with LPQ_NATIVE_ARGUMENT on the CPU; on CUDA its rows are
//     wrong
// On CUDA items that blocks share add the sums of runs of groups; x, w and scales of groups start at multiples of 16
// bytes.
struct GemmAct : Arguments {
  const Tensor& x = input("x", {i8, f8_e4m3}, {-1, -1});
  const Tensor& y = output("y", kFloats, {x.dim(0), -1});
  int64_t m = x.dim(0), n = y.dim(1), k = x.dim(1), k_blocks = parts_of(k, 128);
  const Tensor& x_scales = input("x_scales", {f32}, {m});
  const Tensor& w = input("w");
  bool integers = x.dtype == i8, packed = w.rank() == 3, two_level = flag("groupScales");
  const Tensor& w_scales = input("w_scales", {f32});
  const Tensor* group_scales = input_if(two_level, "group_scales", {i8}, {k_blocks, -1});
  bool of_groups = packed && w_scales.rank() == 2;  // f32 scales, one a row and group
  const Tensor* bias = last_input("bias", {f32}, {n});
  GemmSettings settings =
      GemmSettings::read(*this, {"tokens", "width", "blocks", "stages", "reduce", "overlap"}, {"act8"});

  explicit GemmAct(const Call& call) : Arguments(call, "gemm_act") {
    require_gemm_sizes(m, n, k);
    require(k % 16 == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 16");
    require_tensor(w, "w", packed ? u8 : x.dtype, packed ? Dims{parts_of(n, 16), k_blocks, 1024} : Dims{n, k});
    if (of_groups) require_shape(w_scales, "w_scales", {k_blocks, -1}), require_rows_of_scales(w_scales, n);
    else require_shape(w_scales, "w_scales", {n});
    require(of_groups || !packed || integers, "codes of 4 bits times f8_e4m3 have scales of groups");
    if (two_level) {
      require(packed && !of_groups, "groupScales are of codes of 4 bits with one scale a row");
      require_rows_of_factors(*group_scales, n);
    }
    // 128 * 128 * (2^17 - 1) < 2^31
    require(of_groups || !integers || k < 131072,
            "sums of " + std::to_string(k) + " products of s8 may not fit 32 bits");
    done();
  }
};

}  // namespace lpq::ops
