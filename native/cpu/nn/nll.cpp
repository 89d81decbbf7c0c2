#include <cmath>

#include "cpu/nn/cast.h"
#include "ops/tokens.h"

namespace lpq::nn {
namespace {

void neg_log_likelihood(Call& call, Exec& exec) {
  const ops::NegLogLikelihood a(call);
  const int64_t tokens = a.logits.dim(0), vocabulary = a.logits.dim(1);
  const float* from = a.logits.data<float>();
  const int32_t* target = a.targets.data<int32_t>();
  double* out = a.nll.data<double>();
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
