#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/nn/cast.h"
#include "ops/routing.h"

namespace lpq::nn {
namespace {

// How experts are chosen, and how much each weighs.
struct Choice {
  int64_t experts, k, groups, top_groups;
  bool sigmoid, normalize, top_two;
  float scale, jitter;
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

// SparseMixer: `left` has the logits of experts not chosen yet, -infinity of the others.
void mix_token(const Choice& how, const float* row, float* left, int32_t* index, float* weight) {
  std::copy(row, row + how.experts, left);
  for (int64_t j = 0; j < how.k; ++j) {
    const int64_t best = std::max_element(left, left + how.experts) - left;
    const float most = left[best];
    double sum = 0;
    for (int64_t e = 0; e < how.experts; ++e)
      if (!((most - left[e]) / std::max(std::fabs(row[e]), most) > 2 * how.jitter))
        sum += std::exp(static_cast<double>(left[e]) - most);
    index[j] = static_cast<int32_t>(best);
    weight[j] = static_cast<float>(how.scale / sum);
    left[best] = -std::numeric_limits<float>::infinity();
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
  const ops::RouteTopK a(call);
  const int64_t tokens = a.logits.dim(0), experts = a.logits.dim(1), k = a.k;
  Choice how{experts, k, a.groups, a.top_groups, a.sigmoid, a.normalize, a.top_two, a.scale, a.jitter, nullptr};
  std::vector<float> bias(a.bias ? static_cast<size_t>(experts) : 0);
  if (a.bias) {
    widen(*a.bias, 0, experts, bias.data());
    for (int64_t e = 0; e < experts; ++e)
      if (!std::isfinite(bias[static_cast<size_t>(e)]))
        throw Failure("LPQ_NATIVE_NUMERICS", "the routing bias of expert " + std::to_string(e) + " is NaN or infinite");
    how.bias = bias.data();
  }
  const float* from = a.logits.data<float>();
  int32_t* index = a.indices.data<int32_t>();
  float* weight = a.weights.data<float>();
  exec.pool.parallel_for(tokens, rows_grain(experts * (6 + k)), [&](int64_t begin, int64_t end, int) {
    std::vector<float> share(static_cast<size_t>(experts)), choice(share), groups(static_cast<size_t>(how.groups));
    for (int64_t t = begin; t < end; ++t) {
      const float* row = from + t * experts;
      for (int64_t e = 0; e < experts; ++e)
        if (!std::isfinite(row[e]))
          throw Failure("LPQ_NATIVE_NUMERICS", "the routing logit of token " + std::to_string(t) + " and expert " +
                                                   std::to_string(e) + " is NaN or infinite");
      if (how.jitter > 0) mix_token(how, row, choice.data(), index + t * k, weight + t * k);
      else route_token(how, row, share.data(), choice.data(), groups.data(), index + t * k, weight + t * k);
    }
  });
}

void group_by_expert(Call& call, Exec&) {
  const ops::GroupByExpert a(call);
  const int64_t experts = a.experts, count = a.indices.elements();
  const int32_t* index = a.indices.data<int32_t>();
  std::vector<int64_t> next(static_cast<size_t>(experts) + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= experts)
      require(false, "indices holds " + std::to_string(index[i]) + ", outside " + std::to_string(experts) + " experts");
    ++next[static_cast<size_t>(index[i]) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int64_t e = 0; e <= experts; ++e)
    a.offsets.data<int32_t>()[e] = static_cast<int32_t>(next[static_cast<size_t>(e)]);
  for (int64_t i = 0; i < count; ++i)
    a.rows.data<int32_t>()[next[static_cast<size_t>(index[i])]++] = static_cast<int32_t>(i);
}

void require_rows(const int32_t* row, int64_t count, int64_t divide, int64_t limit, const char* what) {
  for (int64_t m = 0; m < count; ++m)
    if (row[m] < 0 || row[m] / divide >= limit)
      require(false, "rows[" + std::to_string(m) + "] is " + std::to_string(row[m]) + ", outside " + what + " of " +
                         std::to_string(limit) + " rows");
}

void gather_rows(Call& call, Exec& exec) {
  const ops::GatherRows a(call);
  require_f32({{&a.x, "x"}});
  const int64_t count = a.rows.dim(0), c = a.x.dim(1), divide = a.divide;
  const int32_t* row = a.rows.data<int32_t>();
  require_rows(row, count, divide, a.x.dim(0), "x");
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(count, rows_grain(c), [&](int64_t m) {
    std::memcpy(to + m * c, from + row[m] / divide * c, static_cast<size_t>(c) * 4);
  });
}

void scatter_add_rows(Call& call, Exec& exec) {
  const ops::ScatterAddRows a(call);
  require_f32({{&a.x, "x"}});
  const int64_t count = a.x.dim(0), c = a.x.dim(1), divide = a.divide;
  const int32_t* row = a.rows.data<int32_t>();
  require_rows(row, count, divide, a.y.dim(0), "y");
  require_rows(row, count, 1, a.weights.elements(), "weights");
  const float *from = a.x.data<float>(), *weight = a.weights.data<float>();
  float* to = a.y.data<float>();
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
