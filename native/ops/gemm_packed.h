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
struct GemmPacked {
  static constexpr int64_t kBlockN = 32, kBlockK = 128;
  const Tensor &x, &weights, &scales;
  const Tensor *zeros, *bias;
  const Tensor& y;
  QuantType type;
  int64_t m, n, k, group_size, groups;
  double zero;
  GemmSettings settings;

  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(
        a, {"warpsN", "warpsK", "stages", "blocks", "tokens", "width", "slices", "reduce", "overlap", "tuned"},
        {"stream", "wide", "scaled", "hopper", "large", "portable"});
  }

  static GemmPacked parse(const Call& call) {
    Arguments a(call, "gemm_packed");
    const QuantType type = a.quant_type();
    const bool integer = type.kind == QuantType::Kind::integer;
    const Tensor& x = a.input("x", {DType::f16, DType::bf16}, {-1, -1});
    const Tensor& y = a.output("y", {x.dtype}, {x.dim(0), -1});
    const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1), group_size = a.integer("groupSize", 0);
    require_gemm_sizes(m, n, k);
    require_group_size(group_size, true);
    const int64_t groups = group_size == 0 ? 1 : parts_of(k, group_size), n_blocks = parts_of(n, kBlockN);
    const Dims sides = {n_blocks, groups, kBlockN};
    const Tensor& weights = a.input("weights", {DType::u8}, {n_blocks, parts_of(k, kBlockK), 512 * type.bits});
    const Tensor& scales = a.input("scales", {DType::f16, DType::bf16}, sides);
    const Tensor* zeros = a.input_if(a.flag("hasZeros"), "zeros", {DType::u8, DType::f16}, sides);
    const Tensor* bias = a.input_if(a.flag("hasBias"), "bias", {x.dtype}, {n});
    const double zero = a.number("zero", 0);
    require(integer || (zero == 0 && !zeros), "floating-point types have no zero points");
    const GemmSettings settings = settings_of(a);
    a.done();
    return {x, weights, scales, zeros, bias, y, type, m, n, k, group_size, groups, zero, settings};
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    require_group_size(p.group_size, true);
    const int64_t n_pad = up_to(p.n, kBlockN), k_pad = up_to(p.k, kBlockK);
    require((p.n_padded == 0 || p.n_padded == n_pad) && (p.k_padded == 0 || p.k_padded == k_pad),
            "tilus is stored in N of whole blocks of 32 and K of 128, and no more");
    Call call;
    call.params = type_params(p.type);
    const Dims sides = {n_pad / kBlockN, p.group_size == 0 ? 1 : parts_of(p.k, p.group_size), kBlockN};
    call.in = {place("x", p.x, {p.m, p.k}),
               place("weights", DType::u8, {n_pad / kBlockN, k_pad / kBlockK, 512 * QuantType::from(call.params).bits}),
               place("scales", p.scales, sides)};
    if (p.zeros) call.in.push_back(place("zeros", *p.zeros, sides));
    if (p.bias) call.in.push_back(place("bias", p.x, {p.n}));
    call.out = {place("y", p.x, {p.m, p.n})};
    call.params.set("zero", p.zero), call.params.set("groupSize", double(p.group_size));
    call.params.set("hasZeros", p.zeros ? 1.0 : 0.0), call.params.set("hasBias", p.bias ? 1.0 : 0.0);
    return call;
  }
};

}  // namespace lpq::ops
