// gated_delta_backward. With S' = diag(a) S, e = v - kᵀS', S+ = S' + beta k e, y = qᵀS+ and D the gradient of S+ (q dy
// of this token beside what later ones leave): u = kᵀD, dq = S+ dy, dbeta = u e, dv = beta u, dk = D beta e - S' dv, D'
// = D
// - k dv, da = rows of D' times those of S, and diag(a) D' goes on to the token before.
#include "cpu/nn/delta_factors.h"
#include "ops/backward_recurrent.h"

namespace lpq::nn {
namespace {

constexpr int64_t kSpan = 64;  // tokens whose states are held at once

// Of one head: dq and dk of its unit keys, of all tokens.
struct HeadGradients {
  std::vector<float> dq, dk;
};

class Head {
 public:
  Head(const ops::GatedDeltaBackward& a, const DeltaFactors& by, int64_t head, HeadGradients& made)
      : a_(a), by_(by), head_(head), rows_(a.key_dim), width_(a.value_dim), made_(made) {}

  // Tokens first .. first + count of a sequence.
  void run(int64_t first, int64_t count) {
    const size_t size = static_cast<size_t>(rows_ * width_);
    std::vector<float> state(size, 0.0f), later(size, 0.0f);
    std::vector<std::vector<float>> kept;  // in front of every span
    for (int64_t t = 0; t < count; ++t) {
      if (t % kSpan == 0) kept.push_back(state);
      step(first + t, state, nullptr, nullptr);
    }
    std::vector<std::vector<float>> before(kSpan, std::vector<float>(size));  // S of each token of a span
    for (int64_t span = static_cast<int64_t>(kept.size()) - 1; span >= 0; --span) {
      const int64_t from = span * kSpan, end = std::min(count, from + kSpan);
      state = kept[static_cast<size_t>(span)];
      for (int64_t t = from; t < end; ++t) {
        before[static_cast<size_t>(t - from)] = state;
        step(first + t, state, nullptr, nullptr);
      }
      for (int64_t t = end - 1; t >= from; --t) back(first + t, before[static_cast<size_t>(t - from)], later);
    }
  }

 private:
  float decay(int64_t t, int64_t row) const {
    const int64_t gates = a_.decay.dim(1), per = gates / a_.heads;
    return by_.decay[static_cast<size_t>(t * gates + head_ * per + (per > 1 ? row : 0))];
  }
  size_t key(int64_t t) const {
    return static_cast<size_t>((t * a_.key_heads + head_ / (a_.heads / a_.key_heads)) * rows_);
  }
  float beta(int64_t t) const { return by_.beta[static_cast<size_t>(t * a_.heads + head_)]; }

  // The state behind a token; `forgotten`: S', `error`: e.
  void step(int64_t t, std::vector<float>& state, std::vector<float>* forgotten, std::vector<float>* error) const {
    const VectorKernels& rows = vector_kernels();
    const float* k = by_.k.data() + key(t);
    std::vector<float> e(a_.v.data<float>() + (t * a_.heads + head_) * width_,
                         a_.v.data<float>() + (t * a_.heads + head_ + 1) * width_);
    for (int64_t i = 0; i < rows_; ++i) {
      float* row = state.data() + i * width_;
      rows.scale(row, decay(t, i), row, width_);
      rows.add_scaled(e.data(), row, -k[i], e.data(), width_);
    }
    if (forgotten) *forgotten = state;
    for (int64_t i = 0; i < rows_; ++i) {
      float* row = state.data() + i * width_;
      rows.add_scaled(row, e.data(), beta(t) * k[i], row, width_);
    }
    if (error) *error = std::move(e);
  }

  void back(int64_t t, const std::vector<float>& before, std::vector<float>& later) {
    const VectorKernels& rows = vector_kernels();
    std::vector<float> state = before, forgotten, e;
    step(t, state, &forgotten, &e);
    const float *q = by_.q.data() + key(t), *k = by_.k.data() + key(t);
    const float* dy = a_.dy.data<float>() + (t * a_.heads + head_) * width_;
    float* dv = a_.dv.data<float>() + (t * a_.heads + head_) * width_;
    float *dq = made_.dq.data() + t * rows_, *dk = made_.dk.data() + t * rows_;
    std::vector<float> u(static_cast<size_t>(width_), 0.0f);
    for (int64_t i = 0; i < rows_; ++i) {
      float* row = later.data() + i * width_;
      dq[i] = rows.dot(state.data() + i * width_, dy, width_);
      rows.add_scaled(row, dy, q[i], row, width_);
      rows.add_scaled(u.data(), row, k[i], u.data(), width_);
    }
    a_.dbeta.data<float>()[t * a_.heads + head_] = rows.dot(u.data(), e.data(), width_);
    rows.scale(u.data(), beta(t), dv, width_);
    const int64_t gates = a_.decay.dim(1), per = gates / a_.heads;
    double whole = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      float* row = later.data() + i * width_;
      dk[i] = beta(t) * rows.dot(row, e.data(), width_) - rows.dot(forgotten.data() + i * width_, dv, width_);
      rows.add_scaled(row, dv, -k[i], row, width_);
      const float da = rows.dot(row, before.data() + i * width_, width_);
      if (per > 1) a_.ddecay.data<float>()[t * gates + head_ * per + i] = da;
      whole += static_cast<double>(da);
      rows.scale(row, decay(t, i), row, width_);
    }
    if (per == 1) a_.ddecay.data<float>()[t * gates + head_] = static_cast<float>(whole);
  }

  const ops::GatedDeltaBackward& a_;
  const DeltaFactors& by_;
  int64_t head_, rows_, width_;
  HeadGradients& made_;
};

// From the gradient of factor x / sqrt(x² + tiny) to that of x.
void unit_backward(const float* x, const double* dy, float* dx, int64_t size, double factor) {
  double squares = kDeltaTiny, along = 0;
  for (int64_t i = 0; i < size; ++i) {
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    along += static_cast<double>(x[i]) * dy[i];
  }
  const double by = factor / std::sqrt(squares);
  for (int64_t i = 0; i < size; ++i)
    dx[i] = static_cast<float>(by * (dy[i] - along / squares * static_cast<double>(x[i])));
}

void gated_delta_backward(Call& call, Exec& exec) {
  const ops::GatedDeltaBackward a(call);
  const int64_t tokens = a.q.dim(0), size = a.key_dim, gates = a.decay.dim(1), per = gates / a.heads;
  const std::vector<Run> all = runs({a.starts}, tokens);
  const DeltaFactors by(a, exec);
  std::vector<HeadGradients> heads(static_cast<size_t>(a.heads));
  for (HeadGradients& each : heads) {
    each.dq.resize(static_cast<size_t>(tokens * size));
    each.dk.resize(static_cast<size_t>(tokens * size));
  }
  exec.pool.for_each(static_cast<int64_t>(all.size()) * a.heads, 1, [&](int64_t task) {
    const Run& run = all[static_cast<size_t>(task / a.heads)];
    const int64_t head = task % a.heads;
    Head(a, by, head, heads[static_cast<size_t>(head)]).run(run.first, run.count);
  });
  const std::vector<float> rate = widened(a.rate), bias = widened(a.bias);
  const int64_t share = a.heads / a.key_heads;
  exec.pool.for_each(tokens, 1, [&](int64_t t) {
    std::vector<double> sum(static_cast<size_t>(size));
    for (int64_t key = 0; key < a.key_heads; ++key)
      for (const bool query : {true, false}) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t h = key * share; h < (key + 1) * share; ++h) {
          const HeadGradients& of = heads[static_cast<size_t>(h)];
          const float* from = (query ? of.dq : of.dk).data() + t * size;
          for (int64_t i = 0; i < size; ++i) sum[static_cast<size_t>(i)] += static_cast<double>(from[i]);
        }
        const int64_t at = (t * a.key_heads + key) * size;
        unit_backward((query ? a.q : a.k).data<float>() + at, sum.data(), (query ? a.dq : a.dk).data<float>() + at,
                      size, query ? 1 / std::sqrt(static_cast<double>(size)) : 1);
      }
    for (int64_t i = 0; i < gates; ++i) {
      const size_t at = static_cast<size_t>(t * gates + i);
      const double x =
          static_cast<double>(a.decay.data<float>()[at]) + static_cast<double>(bias[static_cast<size_t>(i)]);
      const double slope = -std::exp(static_cast<double>(rate[static_cast<size_t>(i / per)])) / (1 + std::exp(-x));
      a.ddecay.data<float>()[at] = static_cast<float>(static_cast<double>(a.ddecay.data<float>()[at]) *
                                                      static_cast<double>(by.decay[at]) * slope);
    }
    for (int64_t h = 0; h < a.heads; ++h) {
      const size_t at = static_cast<size_t>(t * a.heads + h);
      const double beta = static_cast<double>(by.beta[at]);
      a.dbeta.data<float>()[at] =
          static_cast<float>(static_cast<double>(a.dbeta.data<float>()[at]) * beta * (1 - beta / a.strength));
    }
  });
}

}  // namespace
LPQ_OP(gated_delta_backward, "gated_delta_backward");
}  // namespace lpq::nn
