// gemm_packed.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

// y = x Wᵀ + bias with W[n][k] = (decode(code) - zero) * scale of the packed format of docs/internals/layouts/tilus.md.
//   x f16 or bf16 [M,K], y of its dtype [M,N], bias of it [N]
//   weights u8 [ceil(N/32), ceil(K/128), 512 bits]
//   scales f16 or bf16, zeros u8 or f16 (integers only), both [ceil(N/32), G, 32]; G = ceil(K / groupSize), or 1
//   groupSize 32, 64, 128, or 0 for one scale a row; zero: the constant where there are no zeros
// Sums are fp32. Codes are multiplied exactly for up to 64 tokens (on devices without wgmma 16) and wherever the kernel
// is neither `scaled` nor `large`: those round W to the dtype of x first, as if it were dequantized.
// On CUDA weights, scales and zeros start at multiples of 16 bytes.
struct GemmPacked : GemmArguments {
  static constexpr int64_t kBlockN = 32, kBlockK = 128;
  QuantType type = quant_type();
  int64_t group_size = checked_group_size(integer("groupSize", 0), {0, 32, 64, 128}), groups = groups_of(k, group_size);
  Dims sides = {parts_of(n, kBlockN), groups, kBlockN};
  const Tensor& weights = input("weights", {u8}, {sides[0], parts_of(k, kBlockK), 512 * type.bits});
  const Tensor& scales = input("scales", kHalves, sides);
  const Tensor* zeros = input_if(flag("hasZeros"), "zeros", {u8, f16}, sides);
  const Tensor* bias = read_bias();
  double zero = number("zero", 0);
  GemmSettings settings = settings_of(*this);

  explicit GemmPacked(const Call& call) : GemmArguments(call, "gemm_packed") {
    require(type.kind == QuantType::Kind::integer || (zero == 0 && !zeros), "floating-point types have no zero points");
    done();
  }
  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(
        a, {"warpsN", "warpsK", "stages", "blocks", "tokens", "width", "slices", "reduce", "overlap", "tuned"},
        {"stream", "wide", "scaled", "hopper", "large", "portable"});
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    checked_group_size(p.group_size, {0, 32, 64, 128});
    const int64_t n_pad = up_to(p.n, kBlockN), k_pad = up_to(p.k, kBlockK);
    require((p.n_padded == 0 || p.n_padded == n_pad) && (p.k_padded == 0 || p.k_padded == k_pad),
            "tilus is stored in N of whole blocks of 32 and K of 128, and no more");
    const QuantType type = type_named(p.type);
    const Dims sides = {n_pad / kBlockN, groups_of(p.k, p.group_size), kBlockN};
    Params params = type_params(type);
    params.set("zero", p.zero), params.set("hasZeros", double(p.zeros.has_value()));
    return described_call(p, place,
                          {{"weights", u8, {sides[0], k_pad / kBlockK, 512 * type.bits}},
                           {"scales", p.scales, sides},
                           {"zeros", p.zeros.value_or(u8), sides, p.zeros.has_value()}},
                          params);
  }
};

}  // namespace lpq::ops
