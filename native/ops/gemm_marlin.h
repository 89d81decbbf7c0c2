// gemm_marlin.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

// y = x Wᵀ + bias of MARLIN's bytes (docs/internals/layouts/marlin.md), unsigned codes of 4 or 8 `bits`.
//   x f16 or bf16 [M,K], y of its dtype [M,N], bias of it [N]
//   weights i32 [K'/16, N' bits / 2], K' and N' multiples of 32 and 64 that hold K and N
//   scales f16 [G, N']; G = ceil(K' / groupSize), or 1 for groupSize 0, one scale a row
//   zeros i32 [G, N' bits / 32], else the middle code is the zero point
//   permutation i32 [K]: the column of x of each row of weights
// On CUDA weights, scales and zeros start at multiples of 16 bytes.
struct GemmMarlin {
  const Tensor &x, &weights, &scales;
  const Tensor *zeros, *permutation, *bias;
  const Tensor& y;
  int64_t bits, m, n, k, n_pad, k_pad, group_size, groups;
  GemmSettings settings;

  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(a, {"warpsN", "warpsK", "stages", "blocks", "tuned"});
  }

  static GemmMarlin parse(const Call& call) {
    Arguments a(call, "gemm_marlin");
    const int64_t bits = a.integer("bits"), group_size = a.integer("groupSize", 0);
    require(bits == 4 || bits == 8, "bits is " + std::to_string(bits) + ", not 4 or 8");
    require_group_size(group_size, true);
    const Tensor& x = a.input("x", {DType::f16, DType::bf16}, {-1, -1});
    const Tensor& y = a.output("y", {x.dtype}, {x.dim(0), -1});
    const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1);
    require_gemm_sizes(m, n, k);
    const Tensor& weights = a.input("weights", {DType::i32}, {-1, -1});
    const int64_t k_pad = weights.dim(0) * 16, n_pad = weights.dim(1) * 2 / bits;
    require(weights.dim(1) % (32 * bits) == 0 && weights.dim(0) % 2 == 0 && n_pad >= n && k_pad >= k &&
                n_pad < kMostRows + 1024 && k_pad < kMostRows + 1024,
            "weights are not whole tiles of 64 columns and 32 rows that hold N and K");
    const int64_t groups = group_size == 0 ? 1 : parts_of(k_pad, group_size);
    const Tensor& scales = a.input("scales", {DType::f16}, {groups, n_pad});
    const Tensor* zeros = a.input_if(a.flag("hasZeros"), "zeros", {DType::i32}, {groups, n_pad * bits / 32});
    const Tensor* permutation = a.input_if(a.flag("hasOrder"), "permutation", {DType::i32}, {k});
    const Tensor* bias = a.input_if(a.flag("hasBias"), "bias", {x.dtype}, {n});
    const GemmSettings settings = settings_of(a);
    a.done();
    return {x, weights, scales, zeros, permutation, bias, y, bits, m, n, k, n_pad, k_pad, group_size, groups, settings};
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    require_group_size(p.group_size, true);
    require(p.type == "u4" || p.type == "u8",
            "marlin has u4 and u8, not " + p.type + "; signed types are stored as these");
    require(p.scales == DType::f16, "marlin's scales are f16");
    require(!p.zeros || *p.zeros == DType::i32, "marlin's zero points are words, i32");
    const int64_t bits = p.type[1] - '0', n_pad = p.n_padded ? p.n_padded : up_to(p.n, 256),
                  k_pad = p.k_padded ? p.k_padded : up_to(p.k, 128);
    require(n_pad % 64 == 0 && k_pad % 32 == 0 && n_pad >= p.n && k_pad >= p.k,
            "marlin is stored in whole tiles of 64 columns and 32 rows that hold N and K");
    const int64_t groups = p.group_size == 0 ? 1 : parts_of(k_pad, p.group_size);
    Call call;
    call.in = {place("x", p.x, {p.m, p.k}), place("weights", DType::i32, {k_pad / 16, n_pad * bits / 2}),
               place("scales", DType::f16, {groups, n_pad})};
    if (p.zeros) call.in.push_back(place("zeros", DType::i32, {groups, n_pad * bits / 32}));
    if (p.permutation) call.in.push_back(place("permutation", DType::i32, {p.k}));
    if (p.bias) call.in.push_back(place("bias", p.x, {p.n}));
    call.out = {place("y", p.x, {p.m, p.n})};
    call.params.set("bits", double(bits)), call.params.set("groupSize", double(p.group_size));
    call.params.set("hasZeros", p.zeros ? 1.0 : 0.0), call.params.set("hasBias", p.bias ? 1.0 : 0.0),
        call.params.set("hasOrder", p.permutation ? 1.0 : 0.0);
    return call;
  }
};

}  // namespace lpq::ops
