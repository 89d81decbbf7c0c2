// gemm_sparse_marlin.
#pragma once
#include "ops/gemm.h"

namespace lpq::ops {

// y = x Wᵀ + bias of Sparse-MARLIN's bytes (docs/internals/layouts/sparse-marlin.md), W 2:4 sparse along K.
//   x f16 or bf16 [M,K], y of its dtype [M,N], bias of it [N]
//   weights i32 [K'/32, N' bits / 2]: unsigned codes of 4 or 8 `bits` of what stays, zero point 2^(bits-1)
//   metadata i16 [K'/32, 2N'] in ascending order; K' and N' multiples of 128 and 64 that hold K and N
//   scales f16 [K'/128, N'] for groupSize 128, or [1, N'] for 0, one scale a row
// On CUDA weights, metadata and scales start at multiples of 16 bytes.
struct GemmSparseMarlin : GemmArguments {
  int64_t bits = checked_bits(integer("bits")), group_size = checked_group_size(integer("groupSize", 0), {0, 128});
  const Tensor &weights = input("weights"), &metadata = input("metadata", {i16}, {-1, -1});
  int64_t n_pad = metadata.dim(1) / 2, k_pad = metadata.dim(0) * 32, groups = groups_of(k_pad, group_size);
  const Tensor& scales = input("scales", {f16}, {groups, n_pad});
  const Tensor* bias = read_bias();
  GemmSettings settings = GemmSettings::read(*this, {"warpsN", "warpsK", "stages", "blocks", "overlap"});

  explicit GemmSparseMarlin(const Call& call) : GemmArguments(call, "gemm_sparse_marlin") {
    require(metadata.dim(1) % 128 == 0 && k_pad % 128 == 0 && holds(n_pad, n, k_pad, k),
            "metadata is not of whole tiles of 64 columns and 128 rows that hold N and K");
    require_tensor(weights, "weights", i32, {k_pad / 32, n_pad * bits / 2});
    done();
  }

  // The call of weights that are described; its x and y are put in by place(). Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    require(p.type == "u4" || p.type == "i4" || p.type == "u8" || p.type == "i8",
            "sparse_marlin has u4 and u8, not " + p.type + "; signed types are stored as these");
    checked_group_size(p.group_size, {0, 128});
    require(p.scales == f16, "sparse_marlin's scales are f16");
    require(!p.zeros && !p.permutation, "sparse_marlin has neither zero points nor an order of columns");
    const int64_t bits = p.type[1] - '0', n_pad = p.n_padded ? p.n_padded : up_to(p.n, 256),
                  k_pad = p.k_padded ? p.k_padded : up_to(p.k, 128);
    require(n_pad >= p.n && k_pad >= p.k && n_pad % 64 == 0 && k_pad % 128 == 0,
            "sparse_marlin is stored in whole tiles of 64 columns and 128 rows that hold N and K");
    return described_call(p, place,
                          {{"weights", i32, {k_pad / 32, n_pad * bits / 2}},
                           {"metadata", i16, {k_pad / 32, 2 * n_pad}},
                           {"scales", f16, {groups_of(k_pad, p.group_size), n_pad}}},
                          {{"bits", double(bits)}});
  }
};

}  // namespace lpq::ops
