#include <cmath>
#include <numeric>
#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void route_top_k(Call& call, Exec& exec) {
  const Tensor &logits = call.input(0), &indices = call.output(0), &weights = call.output(1);
  require_tensor(logits, "logits", DType::f32, {-1, -1});
  const int64_t tokens = logits.dim(0), experts = logits.dim(1), k = call.params.integer("k");
  require(k >= 1 && k <= experts,
          "k is " + std::to_string(k) + ", not between 1 and the number of experts, " + std::to_string(experts));
  require_tensor(indices, "indices", DType::i32, {tokens, k});
  require_tensor(weights, "weights", DType::f32, {tokens, k});
  const bool normalize = call.params.number("normalize") != 0;
  const float* from = logits.data<float>();
  int32_t* index = indices.data<int32_t>();
  float* weight = weights.data<float>();
  exec.pool.parallel_for(tokens, rows_grain(experts * (4 + k)), [&](int64_t begin, int64_t end, int) {
    std::vector<float> share(static_cast<size_t>(experts));
    std::vector<bool> taken(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      const float* row = from + t * experts;
      for (int64_t e = 0; e < experts; ++e)
        if (!std::isfinite(row[e]))
          throw Failure("LPQ_NATIVE_NUMERICS", "the routing logit of token " + std::to_string(t) + " and expert " +
                                                   std::to_string(e) + " is NaN or infinite");
      const float sum = vector_kernels().exponentials(row, vector_kernels().maximum(row, experts), share.data(), experts);
      std::fill(taken.begin(), taken.end(), false);
      float chosen = 0;
      for (int64_t j = 0; j < k; ++j) {  // logits, not shares: two logits may share one rounded exponential
        int64_t best = -1;
        for (int64_t e = 0; e < experts; ++e)
          if (!taken[e] && (best < 0 || row[e] > row[best])) best = e;
        taken[best] = true;
        index[t * k + j] = static_cast<int32_t>(best);
        weight[t * k + j] = share[best] / sum;
        chosen += weight[t * k + j];
      }
      if (normalize)
        for (int64_t j = 0; j < k; ++j) weight[t * k + j] /= chosen;
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
  for (int64_t e = 0; e <= experts; ++e) offsets.data<int32_t>()[e] = static_cast<int32_t>(next[static_cast<size_t>(e)]);
  for (int64_t i = 0; i < count; ++i) rows.data<int32_t>()[next[static_cast<size_t>(index[i])]++] = static_cast<int32_t>(i);
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
