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
struct RouteTopK {
  const Tensor &logits, &indices, &weights;
  const Tensor* bias;
  int64_t k, groups, top_groups;
  bool sigmoid, normalize, top_two;
  float scale, jitter;

  static RouteTopK parse(const Call& call) {
    Arguments a(call, "route_top_k");
    const Tensor& logits = a.input("logits", {DType::f32}, {-1, -1});
    const int64_t tokens = logits.dim(0), experts = logits.dim(1), k = a.integer("k");
    const int64_t groups = a.integer("groups", 1), top_groups = a.integer("topGroups", 1);
    const bool top_two = a.flag("topTwo");
    require(groups >= 1 && experts % groups == 0,
            "groups is " + std::to_string(groups) + ", which does not divide " + std::to_string(experts) + " experts");
    require(top_groups >= 1 && top_groups <= groups,
            "topGroups is " + std::to_string(top_groups) + ", not between 1 and " + std::to_string(groups));
    require(!top_two || experts / groups >= 2, "topTwo needs groups of two experts at least");
    const int64_t open = top_groups * (experts / groups);
    require(k >= 1 && k <= open, "k is " + std::to_string(k) +
                                     ", not between 1 and the number of experts to choose from, " +
                                     std::to_string(open));
    const RouteTopK of{logits,
                       a.output("indices", {DType::i32}, {tokens, k}),
                       a.output("weights", {DType::f32}, {tokens, k}),
                       a.input_if(a.left() > 0, "bias", kFloats, {experts}),
                       k,
                       groups,
                       top_groups,
                       a.flag("sigmoid"),
                       a.number("normalize") != 0,
                       top_two,
                       a.real("scale", 1),
                       a.real("jitter", 0)};
    require(of.jitter >= 0, "jitter is " + std::to_string(of.jitter));
    require(of.jitter == 0 || (!of.bias && groups == 1 && !of.sigmoid && !of.normalize),
            "jitter goes without bias, groups, sigmoid and normalize");
    return a.done(), of;
  }
};

// Groups routed tokens by expert: indices I32 [T,k] -> rows I32 [T*k] (flat t*k+j, ascending inside an expert) and
// offsets I32 [E+1], E = `experts`. An index that is none: LPQ_NATIVE_ARGUMENT.
struct GroupByExpert {
  const Tensor &indices, &rows, &offsets;
  int64_t experts;

  static GroupByExpert parse(const Call& call) {
    Arguments a(call, "group_by_expert");
    const Tensor& indices = a.input("indices", {DType::i32}, {-1, -1});
    const int64_t experts = a.integer("experts"), count = indices.elements();
    require(experts > 0, "experts is " + std::to_string(experts));
    require(count < (int64_t{1} << 31), "there are 2^31 routed tokens or more");
    const GroupByExpert of{indices, a.output("rows", {DType::i32}, {count}),
                           a.output("offsets", {DType::i32}, {experts + 1}), experts};
    return a.done(), of;
  }
};

inline int64_t checked_divide(int64_t divide) {
  require(divide >= 1, "divide is " + std::to_string(divide));
  return divide;
}

// y[m] = x[rows[m] div `divide`] (1); x f32 (on CUDA f16 or bf16 too) [T,C], rows I32 [M], y of x's dtype [M,C]. A row
// that x does not have: LPQ_NATIVE_ARGUMENT.
struct GatherRows {
  const Tensor &x, &rows, &y;
  int64_t divide;

  static GatherRows parse(const Call& call) {
    Arguments a(call, "gather_rows");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &rows = a.input("rows", {DType::i32}, {-1});
    const GatherRows of{x, rows, a.output("y", {x.dtype}, {rows.dim(0), x.dim(1)}),
                        checked_divide(a.integer("divide", 1))};
    return a.done(), of;
  }
};

// y[rows[m] div `divide`] += weights.flat[rows[m]] * x[m]; in order of m, so experts add in a fixed order. x f32 (on
// CUDA f16 or bf16 too) [M,C], rows I32 [M], weights f32 (on CUDA `divide` for each row of y), y f32 [T,C]. A row that
// is none: LPQ_NATIVE_ARGUMENT.
struct ScatterAddRows {
  const Tensor &x, &rows, &weights, &y;
  int64_t divide;

  static ScatterAddRows parse(const Call& call) {
    Arguments a(call, "scatter_add_rows");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &rows = a.input("rows", {DType::i32}, {x.dim(0)}),
                 &weights = a.input("weights");
    require_dtype(weights, "weights", {DType::f32});
    a.input("y");  // which is the output of that name
    const ScatterAddRows of{x, rows, weights, a.output("y", {DType::f32}, {-1, x.dim(1)}),
                            checked_divide(a.integer("divide"))};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
