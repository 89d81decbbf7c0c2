// gemm_experts.
#pragma once
#include <string_view>

#include "ops/elementwise.h"
#include "ops/gemm_packed.h"

namespace lpq::ops {

// Rows of x sorted by expert, each times the weight of its expert: y[m] = x[m] W_eᵀ + bias_e for offsets[e] <= m <
// offsets[e + 1]. Weights are those of gemm_packed (gemm_packed.h), all experts of one form, one after the other.
//   x f16 or bf16 [M,K], y of its dtype [M,N], bias of it [E,N]
//   offsets i32 [E+1], on the device of x: 0 or more, ascending, at most M; group_by_expert makes them
//   weights u8 [E, ceil(N/32), ceil(K/128), 512 bits]
//   scales f16 or bf16, zeros u8 or f16 (integers only), both [E, ceil(N/32), G, 32]
// Rows of y before offsets[0] and from offsets[E] on stay as they are. Offsets that break the rule:
// LPQ_NATIVE_ARGUMENT, on CUDA from the next wait for the queue, and nothing is multiplied. Codes are multiplied
// exactly, but on devices with wgmma codes of 4 and 8 bits from more than 44 rows an expert in the mean on, as weights
// rounded once to the type of x; sums are fp32. On CUDA they are cut where the runs of blocks end, which all offsets
// decide, and added up in the order of K: the same call with the same offsets gives the same bytes. On CUDA weights,
// scales and zeros start at multiples of 16 bytes.
//
// With `gate` weights, scales, zeros and bias are of N = 64 ceil(I/32) rows, of which eights stand by turns: rows 16 i
// to 16 i + 7 are rows 8 i to 8 i + 7 of the gate, the next eight those of what it gates (up), as interleave_gates
// leaves them; and y is [M,I], made of sums in fp32 and rounded once:
//   act(gate) up                                            gate: an activation (elementwise.h)
//   silu(min(gate, limit)) clamp(up, -limit, limit)          silu with limit > 0
//   g sigmoid(alpha g) (clamp(up, -limit, limit) + 1), g = min(gate, limit)    clamped
// On CUDA gelu is off by up to 3.1e-6 before it is multiplied.
struct ExpertGating {
  static constexpr int kClamped = 7;  // behind those of Act
  int kind = -1;                      // none
  float alpha = 1, limit = 0;         // 0: none

  static ExpertGating read(Arguments& a) {
    ExpertGating g;
    g.kind = a.one_of("gate", {"silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "clamped"}, -1);
    if (!g) return g;
    if (g.kind == kClamped) g.alpha = a.real("alpha"), g.limit = a.real("limit");
    else if (g.is(Act::silu)) g.limit = a.real("limit", 0);
    require(g.alpha > 0, "alpha is " + std::to_string(g.alpha) + ", not positive");
    require(g.limit > 0 || (g.limit == 0 && g.kind != kClamped),
            "limit is " + std::to_string(g.limit) + ", not positive");
    return g;
  }
  explicit operator bool() const { return kind >= 0; }
  bool is(Act act) const { return kind == static_cast<int>(act); }
  // Rows of weights of so many columns of y.
  int64_t rows(int64_t columns) const { return *this ? 2 * up_to(columns, GemmPacked::kBlockN) : columns; }
};

struct GemmExperts : Arguments {
  const Tensor& x = input("x", kHalves, {-1, -1});
  const Tensor& offsets = input("offsets", {i32}, {-1});
  const Tensor& y = output("y", {x.dtype}, {x.dim(0), -1});
  ExpertGating gate = ExpertGating::read(*this);
  int64_t m = x.dim(0), columns = y.dim(1), n = gate.rows(columns), k = x.dim(1),
          experts = checked_experts(offsets.dim(0) - 1);
  QuantType type = quant_type();
  int64_t group_size = checked_group_size(integer("groupSize", 0), {0, 32, 64, 128}), groups = groups_of(k, group_size);
  int64_t n_blocks = parts_of(n, GemmPacked::kBlockN), k_blocks = parts_of(k, GemmPacked::kBlockK);
  Dims sides = {experts, n_blocks, groups, GemmPacked::kBlockN};
  const Tensor& weights = input("weights", {u8}, {experts, n_blocks, k_blocks, 512 * type.bits});
  const Tensor& scales = input("scales", kHalves, sides);
  const Tensor* zeros = input_if(flag("hasZeros"), "zeros", {u8, f16}, sides);
  const Tensor* bias = input_if(flag("hasBias"), "bias", {x.dtype}, {experts, n});
  double zero = number("zero", 0);
  GemmSettings settings = GemmSettings::read(*this, {"warpsN", "warpsK", "stages", "blocks", "tokens", "width"},
                                             {"scaled", "wide", "hopper", "portable"});

  static constexpr int64_t kMostExperts = 4096;

  explicit GemmExperts(const Call& call) : Arguments(call, "gemm_experts") {
    require_gemm_sizes(m, n, k);
    require(type.kind == QuantType::Kind::integer || (zero == 0 && !zeros), "floating-point types have no zero points");
    done();
  }
  // The call of a product that is described, of p.experts; of a gated one with silu. Throws
  // Failure("LPQ_NATIVE_ARGUMENT").
  static Call call(const GemmProduct& p, const Place& place) {
    checked_experts(p.experts);
    require_gemm_sizes(p.m, p.n, p.k);
    GemmProduct stored = p;
    if (p.gated) stored.n = 2 * up_to(p.n, GemmPacked::kBlockN), stored.n_padded *= 2;
    Call call = GemmPacked::call(stored, [&](const char* name, DType dtype, Dims shape) {
      const std::string_view of = name;
      if (of == "y") shape[1] = p.n;
      else if (of != "x") shape.insert(shape.begin(), p.experts);
      return place(name, dtype, std::move(shape));
    });
    call.in.insert(call.in.begin() + 1, place("offsets", i32, {p.experts + 1}));
    if (p.gated) call.params.set("gate", "silu");
    return call;
  }
  // Of offsets that the host can read.
  static void require_offsets(const int32_t* offsets, int64_t experts, int64_t m) {
    for (int64_t e = 0; e <= experts; ++e)
      if (offsets[e] < (e == 0 ? 0 : offsets[e - 1]) || offsets[e] > m)
        throw Failure("LPQ_NATIVE_ARGUMENT", "offsets[" + std::to_string(e) + "] is " + std::to_string(offsets[e]) +
                                                 ": they are to ascend from 0 or more to at most " + std::to_string(m));
  }
  static int64_t checked_experts(int64_t count) {
    require(count >= 1 && count <= kMostExperts,
            "there are " + std::to_string(count) + " experts, not 1 to " + std::to_string(kMostExperts));
    return count;
  }
};

}  // namespace lpq::ops
