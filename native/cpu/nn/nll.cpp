#include <cmath>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void neg_log_likelihood(Call& call, Exec& exec) {
  const Tensor &logits = call.input(0), &targets = call.input(1), &nll = call.output(0);
  require_tensor(logits, "logits", DType::f32, {-1, -1});
  const int64_t tokens = logits.dim(0), vocabulary = logits.dim(1);
  require_tensor(targets, "targets", DType::i32, {tokens});
  require_tensor(nll, "nll", DType::f64, {tokens});
  const float* from = logits.data<float>();
  const int32_t* target = targets.data<int32_t>();
  double* out = nll.data<double>();
  exec.pool.parallel_for(tokens, rows_grain(vocabulary * 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      if (target[t] < -1 || target[t] >= vocabulary)
        require(false, "token " + std::to_string(t) + " has the target " + std::to_string(target[t]) +
                           ", outside the vocabulary of " + std::to_string(vocabulary));
      const float* row = from + t * vocabulary;
      if (target[t] < 0) {
        out[t] = 0;
        continue;
      }
      const double most = vector_kernels().maximum(row, vocabulary);
      out[t] = std::log(vector_kernels().sum_exp(row, most, vocabulary)) - (row[target[t]] - most);
    }
  });
}

}  // namespace
LPQ_OP(neg_log_likelihood, "neg_log_likelihood");
}  // namespace lpq::nn
