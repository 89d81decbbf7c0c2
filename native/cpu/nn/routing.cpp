#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

// How experts are chosen, and how much each weighs.
struct Choice {
  int64_t experts, k, groups, top_groups;
  bool sigmoid, normalize, top_two;
  float scale;
  const float* bias;  // null: none

  // Shares keep the order of logits but may round two of them to one: without a bias the logits themselves decide.
  bool by_logits() const { return !sigmoid && !bias && !top_two; }
};

// Strikes out (-infinity) all groups but the top_groups with the highest scores; ties go to the lower index.
void limit_groups(const Choice& how, float* choice, float* scores) {
  const int64_t size = how.experts / how.groups;
  for (int64_t g = 0; g < how.groups; ++g) {
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (const float* c = choice + g * size; c < choice + (g + 1) * size; ++c) {
      if (*c > best) {
        second = best;
        best = *c;
      } else if (*c > second) {
        second = *c;
      }
    }
    scores[g] = how.top_two ? best + second : best;
  }
  for (int64_t g = 0; g < how.groups; ++g) {
    int64_t above = 0;
    for (int64_t other = 0; other < how.groups; ++other)
      above += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
    if (above >= how.top_groups)
      std::fill(choice + g * size, choice + (g + 1) * size, -std::numeric_limits<float>::infinity());
  }
}

void route_token(const Choice& how, const float* row, float* share, float* choice, float* groups, int32_t* index,
                 float* weight) {
  const VectorKernels& rows = vector_kernels();
  const int64_t experts = how.experts;
  if (how.sigmoid) {
    rows.scale(row, -1.0f, share, experts);
    rows.exponentials(share, 0.0f, share, experts);
    for (int64_t e = 0; e < experts; ++e) share[e] = 1.0f / (1.0f + share[e]);
  } else {
    const float sum = rows.exponentials(row, rows.maximum(row, experts), share, experts);
    for (int64_t e = 0; e < experts; ++e) share[e] /= sum;
  }
  for (int64_t e = 0; e < experts; ++e)
    choice[e] = how.by_logits() ? row[e] : how.bias ? share[e] + how.bias[e] : share[e];
  if (how.groups > 1) limit_groups(how, choice, groups);
  float chosen = 0;
  for (int64_t j = 0; j < how.k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e)
      if (choice[e] > (best < 0 ? -std::numeric_limits<float>::infinity() : choice[best])) best = e;
    choice[best] = -std::numeric_limits<float>::infinity();
    index[j] = static_cast<int32_t>(best);
    weight[j] = share[best];
    chosen += share[best];
  }
  if (how.normalize)  // sigmoids may all underflow: the 1e-20 of DeepSeek-V3's own code
    for (int64_t j = 0; j < how.k; ++j) weight[j] /= how.sigmoid ? chosen + 1e-20f : chosen;
  if (how.scale != 1.0f)
    for (int64_t j = 0; j < how.k; ++j) weight[j] *= how.scale;
}

void route_top_k(Call& call, Exec& exec) {
  const Tensor &logits = call.input(0), &indices = call.output(0), &weights = call.output(1);
  require_tensor(logits, "logits", DType::f32, {-1, -1});
  const int64_t tokens = logits.dim(0), experts = logits.dim(1), k = call.params.integer("k");
  Choice how{experts,
             k,
             call.params.integer("groups", 1),
             call.params.integer("topGroups", 1),
             call.params.number("sigmoid", 0) != 0,
             call.params.number("normalize") != 0,
             call.params.number("topTwo", 0) != 0,
             static_cast<float>(call.params.number("scale", 1.0)),
             nullptr};
  require(
      how.groups >= 1 && experts % how.groups == 0,
      "groups is " + std::to_string(how.groups) + ", which does not divide " + std::to_string(experts) + " experts");
  require(how.top_groups >= 1 && how.top_groups <= how.groups,
          "topGroups is " + std::to_string(how.top_groups) + ", not between 1 and " + std::to_string(how.groups));
  require(!how.top_two || experts / how.groups >= 2, "topTwo needs groups of two experts at least");
  const int64_t open = how.top_groups * (experts / how.groups);
  require(k >= 1 && k <= open, "k is " + std::to_string(k) +
                                   ", not between 1 and the number of experts to choose from, " + std::to_string(open));
  require_tensor(indices, "indices", DType::i32, {tokens, k});
  require_tensor(weights, "weights", DType::f32, {tokens, k});
  std::vector<float> bias(call.in.size() > 1 ? static_cast<size_t>(experts) : 0);
  if (!bias.empty()) {
    require_dtype(call.input(1), "bias", {DType::f32, DType::f16, DType::bf16});
    require_shape(call.input(1), "bias", {experts});
    widen(call.input(1), 0, experts, bias.data());
    for (int64_t e = 0; e < experts; ++e)
      if (!std::isfinite(bias[static_cast<size_t>(e)]))
        throw Failure("LPQ_NATIVE_NUMERICS", "the routing bias of expert " + std::to_string(e) + " is NaN or infinite");
    how.bias = bias.data();
  }
  const float* from = logits.data<float>();
  int32_t* index = indices.data<int32_t>();
  float* weight = weights.data<float>();
  exec.pool.parallel_for(tokens, rows_grain(experts * (6 + k)), [&](int64_t begin, int64_t end, int) {
    std::vector<float> share(static_cast<size_t>(experts)), choice(share), groups(static_cast<size_t>(how.groups));
    for (int64_t t = begin; t < end; ++t) {
      const float* row = from + t * experts;
      for (int64_t e = 0; e < experts; ++e)
        if (!std::isfinite(row[e]))
          throw Failure("LPQ_NATIVE_NUMERICS", "the routing logit of token " + std::to_string(t) + " and expert " +
                                                   std::to_string(e) + " is NaN or infinite");
      route_token(how, row, share.data(), choice.data(), groups.data(), index + t * k, weight + t * k);
    }
  });
}

void group_by_expert(Call& call, Exec&) {
  const Tensor &indices = call.input(0), &rows = call.output(0), &offsets = call.output(1);
  require_tensor(indices, "indices", DType::i32, {-1, -1});
  const int64_t experts = call.params.integer("experts"), count = indices.elements();
  require(experts > 0, "experts is " + std::to_string(experts));
  require_tensor(rows, "rows", DType::i32, {count});
  require_tensor(offsets, "offsets", DType::i32, {experts + 1});
  require(count < (int64_t{1} << 31), "there are 2^31 routed tokens or more");
  const int32_t* index = indices.data<int32_t>();
  std::vector<int64_t> next(static_cast<size_t>(experts) + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= experts)
      require(false, "indices holds " + std::to_string(index[i]) + ", outside " + std::to_string(experts) + " experts");
    ++next[static_cast<size_t>(index[i]) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int64_t e = 0; e <= experts; ++e)
    offsets.data<int32_t>()[e] = static_cast<int32_t>(next[static_cast<size_t>(e)]);
  for (int64_t i = 0; i < count; ++i)
    rows.data<int32_t>()[next[static_cast<size_t>(index[i])]++] = static_cast<int32_t>(i);
}

void require_rows(const int32_t* row, int64_t count, int64_t divide, int64_t limit, const char* what) {
  require(divide >= 1, "divide is " + std::to_string(divide));
  for (int64_t m = 0; m < count; ++m)
    if (row[m] < 0 || row[m] / divide >= limit)
      require(false, "rows[" + std::to_string(m) + "] is " + std::to_string(row[m]) + ", outside " + what + " of " +
                         std::to_string(limit) + " rows");
}

void gather_rows(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &rows = call.input(1), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  require_tensor(rows, "rows", DType::i32, {-1});
  const int64_t count = rows.dim(0), c = x.dim(1), divide = call.params.integer("divide", 1);
  require_tensor(y, "y", DType::f32, {count, c});
  const int32_t* row = rows.data<int32_t>();
  require_rows(row, count, divide, x.dim(0), "x");
  const float* from = x.data<float>();
  float* to = y.data<float>();
  exec.pool.parallel_for(count, rows_grain(c), [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m)
      std::memcpy(to + m * c, from + row[m] / divide * c, static_cast<size_t>(c) * 4);
  });
}

void scatter_add_rows(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &rows = call.input(1), &weights = call.input(2), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t count = x.dim(0), c = x.dim(1), divide = call.params.integer("divide");
  require_tensor(rows, "rows", DType::i32, {count});
  require_dtype(weights, "weights", {DType::f32});
  require_tensor(y, "y", DType::f32, {-1, c});
  const int32_t* row = rows.data<int32_t>();
  require_rows(row, count, divide, y.dim(0), "y");
  require_rows(row, count, 1, weights.elements(), "weights");
  const float *from = x.data<float>(), *weight = weights.data<float>();
  float* to = y.data<float>();
  // Shared by columns: one row of y may be met several times, and must then add in order of m.
  exec.pool.parallel_for(c, std::max<int64_t>(64, rows_grain(count)), [&](int64_t begin, int64_t end, int) {
    for (int64_t m = 0; m < count; ++m) {
      float* sum = to + row[m] / divide * c;
      vector_kernels().add_scaled(sum + begin, from + m * c + begin, weight[row[m]], sum + begin, end - begin);
    }
  });
}

}  // namespace
LPQ_OP(route_top_k, "route_top_k");
LPQ_OP(group_by_expert, "group_by_expert");
LPQ_OP(gather_rows, "gather_rows");
LPQ_OP(scatter_add_rows, "scatter_add_rows");
}  // namespace lpq::nn
