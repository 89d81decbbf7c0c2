// route_top_k, group_by_expert, gather_rows, scatter_add_rows: mixtures of experts.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Shares of logits f32 [T,E]: softmax, or with `sigmoid` that of each logit. The k experts with the highest share +
// bias (bias f32, f16 or bf16 [E], optional; ties: lower index) among those of the topGroups (1) best of `groups` (1)
// groups of neighbours, a group scoring its best expert, or with `topTwo` the sum of its two best. weights f32 [T,k]:
// their shares without the bias, normalize: divided by their sum, times scale (1); indices I32 [T,k]. NaN and infinity:
// LPQ_NATIVE_NUMERICS. With `jitter` > 0 (SparseMixer, arXiv:2310.00811, as Phi-3.5-MoE has it) instead: one expert
// after another, that with the highest logit m of those left, whose weight is its softmax among those left with (m -
// logit) / max(|logit|, m) <= 2 jitter; without bias, groups, sigmoid and normalize.
struct RouteTopK : Arguments {
  const Tensor& logits = input("logits", {f32}, {-1, -1});
  int64_t tokens = logits.dim(0), experts = logits.dim(1);
  int64_t k = integer("k"), groups = integer("groups", 1), top_groups = integer("topGroups", 1);
  const Tensor& indices = output("indices", {i32}, {tokens, k});
  const Tensor& weights = output("weights", {f32}, {tokens, k});
  const Tensor* bias = last_input("bias", kFloats, {experts});
  bool sigmoid = flag("sigmoid"), normalize = number("normalize") != 0, top_two = flag("topTwo");
  float scale = real("scale", 1), jitter = real("jitter", 0);

  explicit RouteTopK(const Call& call) : Arguments(call, "route_top_k") {
    require(groups >= 1 && experts % groups == 0,
            "groups is " + std::to_string(groups) + ", which does not divide " + std::to_string(experts) + " experts");
    require(top_groups >= 1 && top_groups <= groups,
            "topGroups is " + std::to_string(top_groups) + ", not between 1 and " + std::to_string(groups));
    require(!top_two || experts / groups >= 2, "topTwo needs groups of two experts at least");
    const int64_t open = top_groups * (experts / groups);
    require(k >= 1 && k <= open, "k is " + std::to_string(k) +
                                     ", not between 1 and the number of experts to choose from, " +
                                     std::to_string(open));
    require(jitter >= 0, "jitter is " + std::to_string(jitter));
    require(jitter == 0 || (!bias && groups == 1 && !sigmoid && !normalize),
            "jitter goes without bias, groups, sigmoid and normalize");
    done();
  }
};

// Groups routed tokens by expert: indices I32 [T,k] -> rows I32 [T*k] (flat t*k+j, ascending inside an expert) and
// offsets I32 [E+1], E = `experts`. An index that is none: LPQ_NATIVE_ARGUMENT.
struct GroupByExpert : Arguments {
  const Tensor& indices = input("indices", {i32}, {-1, -1});
  int64_t experts = at_least(1, "experts");
  const Tensor& rows = output("rows", {i32}, {indices.elements()});
  const Tensor& offsets = output("offsets", {i32}, {experts + 1});

  explicit GroupByExpert(const Call& call) : Arguments(call, "group_by_expert") {
    require(indices.elements() < (int64_t{1} << 31), "there are 2^31 routed tokens or more");
    done();
  }
};

// y[m] = x[rows[m] div `divide`] (1); x f32 (on CUDA f16 or bf16 too) [T,C], rows I32 [M], y of x's dtype [M,C]. A row
// that x does not have: LPQ_NATIVE_ARGUMENT.
struct GatherRows : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& rows = input("rows", {i32}, {-1});
  const Tensor& y = output("y", {x.dtype}, {rows.dim(0), x.dim(1)});
  int64_t divide = at_least(1, "divide", 1);

  explicit GatherRows(const Call& call) : Arguments(call, "gather_rows") { done(); }
};

// y[rows[m] div `divide`] += weights.flat[rows[m]] * x[m]; in order of m, so experts add in a fixed order. x f32 (on
// CUDA f16 or bf16 too) [M,C], rows I32 [M], weights f32 (on CUDA `divide` for each row of y), y f32 [T,C]. A row that
// is none: LPQ_NATIVE_ARGUMENT.
struct ScatterAddRows : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& rows = input("rows", {i32}, {x.dim(0)});
  const Tensor& weights = input("weights", {f32});
  const Tensor& y = in_place("y", {f32}, {-1, x.dim(1)});
  int64_t divide = at_least(1, "divide");

  explicit ScatterAddRows(const Call& call) : Arguments(call, "scatter_add_rows") { done(); }
};

}  // namespace lpq::ops
