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
struct GemmSparseMarlin {
  const Tensor &x, &weights, &metadata, &scales;
  const Tensor* bias;
  const Tensor& y;
  int64_t bits, m, n, k, n_pad, k_pad, groups;
  GemmSettings settings;

  static GemmSparseMarlin parse(const Call& call) {
    Arguments a(call, "gemm_sparse_marlin");
    const int64_t bits = a.integer("bits"), group_size = a.integer("groupSize", 0);
    require(bits == 4 || bits == 8, "bits is " + std::to_string(bits) + ", not 4 or 8");
    require(group_size == 0 || group_size == 128,
            "groupSize is " + std::to_string(group_size) + ", not 0 (one scale a row) or 128");
    const Tensor& x = a.input("x", {DType::f16, DType::bf16}, {-1, -1});
    const Tensor& y = a.output("y", {x.dtype}, {x.dim(0), -1});
    const Tensor &weights = a.input("weights"), &metadata = a.input("metadata", {DType::i16}, {-1, -1});
    const int64_t m = x.dim(0), k = x.dim(1), n = y.dim(1), k_pad = metadata.dim(0) * 32, n_pad = metadata.dim(1) / 2;
    require_gemm_sizes(m, n, k);
    require(metadata.dim(1) % 128 == 0 && k_pad % 128 == 0 && n_pad >= n && k_pad >= k && n_pad < kMostRows + 1024 &&
                k_pad < kMostRows + 1024,
            "metadata is not of whole tiles of 64 columns and 128 rows that hold N and K");
    require_tensor(weights, "weights", DType::i32, {k_pad / 32, n_pad * bits / 2});
    const int64_t groups = group_size == 0 ? 1 : k_pad / group_size;
    const Tensor& scales = a.input("scales", {DType::f16}, {groups, n_pad});
    const Tensor* bias = a.input_if(a.flag("hasBias"), "bias", {x.dtype}, {n});
    const GemmSettings settings = GemmSettings::read(a, {"warpsN", "warpsK", "stages", "blocks", "overlap"});
    a.done();
    return {x, weights, metadata, scales, bias, y, bits, m, n, k, n_pad, k_pad, groups, settings};
  }

  // The call of weights that are described; its x and y are put in by place(). Throws Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    require_gemm_sizes(p.m, p.n, p.k);
    require(p.type == "u4" || p.type == "i4" || p.type == "u8" || p.type == "i8",
            "sparse_marlin has u4 and u8, not " + p.type + "; signed types are stored as these");
    require(p.group_size == 0 || p.group_size == 128, "the group of sparse_marlin is not 0 (one scale a row) or 128");
    require(p.scales == DType::f16, "sparse_marlin's scales are f16");
    require(!p.zeros && !p.permutation, "sparse_marlin has neither zero points nor an order of columns");
    const int64_t bits = p.type[1] - '0', n_pad = p.n_padded ? p.n_padded : up_to(p.n, 256),
                  k_pad = p.k_padded ? p.k_padded : up_to(p.k, 128);
    require(n_pad >= p.n && k_pad >= p.k && n_pad % 64 == 0 && k_pad % 128 == 0,
            "sparse_marlin is stored in whole tiles of 64 columns and 128 rows that hold N and K");
    Call call;
    call.in = {place("x", p.x, {p.m, p.k}), place("weights", DType::i32, {k_pad / 32, n_pad * bits / 2}),
               place("metadata", DType::i16, {k_pad / 32, 2 * n_pad}),
               place("scales", DType::f16, {p.group_size ? k_pad / p.group_size : 1, n_pad})};
    if (p.bias) call.in.push_back(place("bias", p.x, {p.n}));
    call.out = {place("y", p.x, {p.m, p.n})};
    call.params.set("bits", double(bits)), call.params.set("groupSize", double(p.group_size)),
        call.params.set("hasBias", p.bias ? 1.0 : 0.0);
    return call;
  }
};

}  // namespace lpq::ops
