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
struct GemmMarlin : GemmArguments {
  int64_t bits = checked_bits(integer("bits")),
          group_size = checked_group_size(integer("groupSize", 0), {0, 32, 64, 128});
  const Tensor& weights = input("weights", {i32}, {-1, -1});
  int64_t n_pad = weights.dim(1) * 2 / bits, k_pad = weights.dim(0) * 16, groups = groups_of(k_pad, group_size);
  const Tensor& scales = input("scales", {f16}, {groups, n_pad});
  const Tensor* zeros = input_if(flag("hasZeros"), "zeros", {i32}, {groups, n_pad * bits / 32});
  const Tensor* permutation = input_if(flag("hasOrder"), "permutation", {i32}, {k});
  const Tensor* bias = read_bias();
  GemmSettings settings = settings_of(*this);

  explicit GemmMarlin(const Call& call) : GemmArguments(call, "gemm_marlin") {
    require(weights.dim(1) % (32 * bits) == 0 && weights.dim(0) % 2 == 0 && holds(n_pad, n, k_pad, k),
            "weights are not whole tiles of 64 columns and 32 rows that hold N and K");
    done();
  }
  static GemmSettings settings_of(Arguments& a) {
    return GemmSettings::read(a, {"warpsN", "warpsK", "stages", "blocks", "tuned"});
  }

  // The call of a product that is described. Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    checked_group_size(p.group_size, {0, 32, 64, 128});
    require(p.type == "u4" || p.type == "u8",
            "marlin has u4 and u8, not " + p.type + "; signed types are stored as these");
    require(p.scales == f16, "marlin's scales are f16");
    require(!p.zeros || *p.zeros == i32, "marlin's zero points are words, i32");
    const int64_t bits = p.type[1] - '0', n_pad = p.n_padded ? p.n_padded : up_to(p.n, 256),
                  k_pad = p.k_padded ? p.k_padded : up_to(p.k, 128), groups = groups_of(k_pad, p.group_size);
    require(n_pad % 64 == 0 && k_pad % 32 == 0 && n_pad >= p.n && k_pad >= p.k,
            "marlin is stored in whole tiles of 64 columns and 32 rows that hold N and K");
    return described_call(
        p, place,
        {{"weights", i32, {k_pad / 16, n_pad * bits / 2}},
         {"scales", f16, {groups, n_pad}},
         {"zeros", i32, {groups, n_pad * bits / 32}, p.zeros.has_value()},
         {"permutation", i32, {p.k}, p.permutation}},
        {{"bits", double(bits)}, {"hasZeros", double(p.zeros.has_value())}, {"hasOrder", double(p.permutation)}});
  }
};

}  // namespace lpq::ops
