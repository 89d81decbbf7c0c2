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
struct GemmTurbomind : GemmArguments {
  static constexpr Types kInteger = {f16}, kEights = {f16, bf16}, kFours = {u8, f8_e8m0};
  QuantType type = quant_type();
  bool integers = type.kind == QuantType::Kind::integer, experts = flag("experts");
  int64_t group_size = checked_group_size(integer("groupSize", 0), {32, 64, 128}), groups = parts_of(k, group_size);
  const Tensor& weights = input("weights");
  const Tensor& scales = input("scales",
                               integers         ? kInteger
                               : type.bits == 8 ? kEights
                                                : kFours,
                               integers ? Dims{groups, -1, 2} : Dims{groups, -1});
  int64_t n_pad = scales.dim(1);
  const Tensor* bias = read_bias();
  GemmSettings settings = settings_of(*this);

  explicit GemmTurbomind(const Call& call) : GemmArguments(call, "gemm_turbomind") {
    require(integers ? type.bits == 4 || type.bits == 8
                     : (type.bits == 4 && type.exponent == 2) || (type.bits == 8 && type.exponent == 4),
            "the type is " + type_name(type) + ", none of 4- and 8-bit integers, f4e2m1 and f8e4m3");
    require(integers || !experts, "only integers have a form for experts");
    require(n_pad % 64 == 0 && holds(n_pad, n, k, k) && k % 32 == 0,
            "scales are not of whole tiles of 64 columns that hold N, or K is no multiple of 32");
    require_tensor(weights, "weights", i32, {n_pad * k * type.bits / 32});
    done();
  }
  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(a, {"warpsN", "warpsK", "stages", "blocks", "tuned"});
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    checked_group_size(p.group_size, {32, 64, 128});
    require(p.k_padded == 0 || p.k_padded == p.k, "turbomind is stored in K of whole groups, without padding");
    require(!p.zeros, "turbomind's zero points stand with its scales");
    const int64_t n_pad = p.n_padded ? p.n_padded : up_to(p.n, 64), groups = parts_of(p.k, p.group_size);
    require(n_pad % 64 == 0 && n_pad >= p.n, "turbomind is stored in whole tiles of 64 columns that hold N");
    const QuantType type = type_named(p.type);
    const bool integers = type.kind == QuantType::Kind::integer;
    Params params = type_params(type);
    params.set("experts", double(p.experts != 0));
    return described_call(p, place,
                          {{"weights", i32, {n_pad * p.k * type.bits / 32}},
                           {"scales", p.scales, integers ? Dims{groups, n_pad, 2} : Dims{groups, n_pad}}},
                          params);
  }
};

}  // namespace lpq::ops
