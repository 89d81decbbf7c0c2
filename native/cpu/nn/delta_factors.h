// What the gated delta rule multiplies with, made of what it is given.
#pragma once
#include "cpu/nn/recurrence.h"

namespace lpq::nn {

constexpr double kDeltaTiny = 1e-6;

// Each of `heads` runs of `size` numbers of x, divided by its length and multiplied by `factor`.
inline void unit(const float* x, float* y, int64_t heads, int64_t size, double factor) {
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i)
      sum += static_cast<double>(x[h * size + i]) * static_cast<double>(x[h * size + i]);
    const double by = factor / std::sqrt(sum + kDeltaTiny);
    for (int64_t i = 0; i < size; ++i) y[h * size + i] = static_cast<float>(static_cast<double>(x[h * size + i]) * by);
  }
}

// Token by token, of the arguments of gated_delta or of its gradient.
struct DeltaFactors {
  std::vector<float> q, k, decay, beta;

  template <class Given>
  DeltaFactors(const Given& a, Exec& exec) {
    const int64_t tokens = a.q.dim(0), keys = a.key_heads * a.key_dim, gates = a.decay.dim(1), per = gates / a.heads;
    for (std::vector<float>* each : {&q, &k}) each->resize(static_cast<size_t>(tokens * keys));
    decay.resize(static_cast<size_t>(tokens * gates));
    beta.resize(static_cast<size_t>(tokens * a.heads));
    const std::vector<float> rate = widened(a.rate), bias = widened(a.bias);
    exec.pool.for_each(tokens, 8, [&](int64_t t) {
      unit(a.q.template data<float>() + t * keys, q.data() + t * keys, a.key_heads, a.key_dim,
           1 / std::sqrt(static_cast<double>(a.key_dim)));
      unit(a.k.template data<float>() + t * keys, k.data() + t * keys, a.key_heads, a.key_dim, 1);
      const float* given = a.decay.template data<float>() + t * gates;
      const float* strength = a.beta.template data<float>() + t * a.heads;
      for (int64_t i = 0; i < gates; ++i) {
        const double by = std::exp(static_cast<double>(rate[static_cast<size_t>(i / per)]));
        const double at = static_cast<double>(given[i]) + static_cast<double>(bias[static_cast<size_t>(i)]);
        decay[static_cast<size_t>(t * gates + i)] = static_cast<float>(std::exp(-by * softplus(at)));
      }
      for (int64_t h = 0; h < a.heads; ++h)
        beta[static_cast<size_t>(t * a.heads + h)] =
            static_cast<float>(a.strength / (1 + std::exp(-static_cast<double>(strength[h]))));
    });
  }
};

}  // namespace lpq::nn
