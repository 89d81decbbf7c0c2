// gated_delta: linear attention whose state forgets and is corrected.
#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

constexpr double kTiny = 1e-6;

// Each of `heads` runs of `size` numbers of x, divided by its length and multiplied by `factor`.
void unit(const float* x, float* y, int64_t heads, int64_t size, double factor) {
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i)
      sum += static_cast<double>(x[h * size + i]) * static_cast<double>(x[h * size + i]);
    const double by = factor / std::sqrt(sum + kTiny);
    for (int64_t i = 0; i < size; ++i) y[h * size + i] = static_cast<float>(static_cast<double>(x[h * size + i]) * by);
  }
}

// What the recurrence multiplies with, token by token.
struct Factors {
  std::vector<float> q, k, decay, beta;

  Factors(const ops::GatedDelta& a, Exec& exec) {
    const int64_t tokens = a.q.dim(0), keys = a.key_heads * a.key_dim, gates = a.decay.dim(1), per = gates / a.heads;
    for (std::vector<float>* each : {&q, &k}) each->resize(static_cast<size_t>(tokens * keys));
    decay.resize(static_cast<size_t>(tokens * gates));
    beta.resize(static_cast<size_t>(tokens * a.heads));
    const std::vector<float> rate = widened(a.rate), bias = widened(a.bias);
    exec.pool.for_each(tokens, 8, [&](int64_t t) {
      unit(a.q.data<float>() + t * keys, q.data() + t * keys, a.key_heads, a.key_dim,
           1 / std::sqrt(static_cast<double>(a.key_dim)));
      unit(a.k.data<float>() + t * keys, k.data() + t * keys, a.key_heads, a.key_dim, 1);
      const float *given = a.decay.data<float>() + t * gates, *strength = a.beta.data<float>() + t * a.heads;
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

void gated_delta(Call& call, Exec& exec) {
  const ops::GatedDelta a(call);
  const std::vector<Run> all = runs(a.past, a.q.dim(0));
  const Factors by(a, exec);
  const int64_t rows = a.key_dim, width = a.value_dim, keys = a.key_heads * rows, values = a.heads * width;
  const int64_t gates = a.decay.dim(1);
  over_states(exec, all, a.heads, rows, width,
              [&](int64_t t, int64_t head, int64_t first, int64_t columns, float* state) {
                const int64_t key = head / (a.heads / a.key_heads) * rows, at = t * values + head * width + first;
                float value[kStateColumns] = {}, made[kStateColumns];
                std::copy(a.v.data<float>() + at, a.v.data<float>() + at + columns, value);
                const float* decay = by.decay.data() + t * gates + (a.by_channel() ? head * rows : head);
                vector_kernels().delta_token(state, rows, decay, a.by_channel() ? 1 : 0, by.k.data() + t * keys + key,
                                             by.q.data() + t * keys + key, value,
                                             by.beta[static_cast<size_t>(t * a.heads + head)], made);
                std::copy(made, made + columns, a.y.data<float>() + at);
              });
}

}  // namespace
LPQ_OP(gated_delta, "gated_delta");
}  // namespace lpq::nn
