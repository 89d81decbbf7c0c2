// gemm_turbomind.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

// y = x Wᵀ + bias of TurboMind's bytes for sm75 to sm90 (docs/internals/layouts/turbomind.md): integers of 4 and 8
// bits, f4e2m1, f8e4m3.
//   x f16 or bf16 [M,K], y of its dtype [M,N], bias of it [N]; K a multiple of 32
//   weights i32 [N' K bits / 32], N' a multiple of 64 that holds N
//   scales of integers f16 [G, N', 2] = {s, t}, W = code s + t; of f4e2m1 f8_e8m0 or u8 [G, N'], of f8e4m3 f16 or bf16
//   [G, N']; G = ceil(K / groupSize), groupSize 32, 64 or 128
//   experts (integers only): tiles run along K first
// On CUDA weights and scales start at multiples of 16 bytes.
struct GemmTurbomind {
  const Tensor &x, &weights, &scales;
  const Tensor* bias;
  const Tensor& y;
  QuantType type;
  bool integer, experts;
  int64_t m, n, k, n_pad, group_size, groups;
  GemmSettings settings;

  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(a, {"warpsN", "warpsK", "stages", "blocks", "tuned"});
  }

  static GemmTurbomind parse(const Call& call) {
    Arguments a(call, "gemm_turbomind");
    const QuantType type = a.quant_type();
    const bool integer = type.kind == QuantType::Kind::integer, experts = a.flag("experts");
    const int64_t bits = type.bits, group_size = a.integer("groupSize", 0);
    require(integer ? bits == 4 || bits == 8 : (bits == 4 && type.exponent == 2) || (bits == 8 && type.exponent == 4),
            "the type is " + type_name(type) + ", none of 4- and 8-bit integers, f4e2m1 and f8e4m3");
    require(integer || !experts, "only integers have a form for experts");
    require_group_size(group_size, false);
    const Tensor& x = a.input("x", {DType::f16, DType::bf16}, {-1, -1});
    const Tensor& y = a.output("y", {x.dtype}, {x.dim(0), -1});
    const Tensor &weights = a.input("weights"), &scales = a.input("scales");
    const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1), groups = parts_of(k, group_size);
    require_gemm_sizes(m, n, k);
    if (integer || bits == 8) require_dtype(scales, "scales", {DType::f16, integer ? DType::f16 : DType::bf16});
    else require_dtype(scales, "scales", {DType::u8, DType::f8_e8m0});
    require_shape(scales, "scales", integer ? Dims{groups, -1, 2} : Dims{groups, -1});
    const int64_t n_pad = scales.dim(1);
    require(n_pad % 64 == 0 && n_pad >= n && n_pad < kMostRows + 1024 && k % 32 == 0,
            "scales are not of whole tiles of 64 columns that hold N, or K is no multiple of 32");
    require_tensor(weights, "weights", DType::i32, {n_pad * k * bits / 32});
    const Tensor* bias = a.input_if(a.flag("hasBias"), "bias", {x.dtype}, {n});
    const GemmSettings settings = settings_of(a);
    a.done();
    return {x, weights, scales, bias, y, type, integer, experts, m, n, k, n_pad, group_size, groups, settings};
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    require_group_size(p.group_size, false);
    require(p.k_padded == 0 || p.k_padded == p.k, "turbomind is stored in K of whole groups, without padding");
    require(!p.zeros, "turbomind's zero points stand with its scales");
    const int64_t n_pad = p.n_padded ? p.n_padded : up_to(p.n, 64), groups = parts_of(p.k, p.group_size);
    require(n_pad % 64 == 0 && n_pad >= p.n, "turbomind is stored in whole tiles of 64 columns that hold N");
    Call call;
    call.params = type_params(p.type);
    const QuantType type = QuantType::from(call.params);
    Dims sides = {groups, n_pad};
    if (type.kind == QuantType::Kind::integer) sides.push_back(2);
    call.in = {place("x", p.x, {p.m, p.k}), place("weights", DType::i32, {n_pad * p.k * type.bits / 32}),
               place("scales", p.scales, sides)};
    if (p.bias) call.in.push_back(place("bias", p.x, {p.n}));
    call.out = {place("y", p.x, {p.m, p.n})};
    call.params.set("groupSize", double(p.group_size)), call.params.set("experts", p.experts ? 1.0 : 0.0),
        call.params.set("hasBias", p.bias ? 1.0 : 0.0);
    return call;
  }
};

}  // namespace lpq::ops
