// Gradients of norms, activations and the output, and of linears by the matrix products.
#include "ops/backward.h"

#include <cmath>
#include <vector>

#include "cpu/linalg/gemm.h"
#include "cpu/math.h"
#include "cpu/nn/act.h"
#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void linear_input_gradient(Call& call, Exec& exec) {
  const ops::LinearInputGradient a(call);
  require_aligned(a.weight, "weight");
  const int64_t t = a.dy.dim(0), n = a.dy.dim(1), k = a.dx.dim(1);
  std::vector<float> wide(a.weight.dtype == DType::f32 ? 0 : static_cast<size_t>(n * k));
  if (!wide.empty())
    exec.pool.for_each(n, rows_grain(k), [&](int64_t row) { widen(a.weight, row * k, k, wide.data() + row * k); });
  const float* weight = wide.empty() ? a.weight.data<float>() : wide.data();
  gemm_f32(exec.pool, Trans::no, Trans::no, t, k, n, 1.0f, a.dy.data<float>(), n, weight, k, a.accumulate ? 1.0f : 0.0f,
           a.dx.data<float>(), k, products_of(a.bf16));
}

void linear_weight_gradient(Call& call, Exec& exec) {
  const ops::LinearWeightGradient a(call);
  const int64_t t = a.x.dim(0), n = a.dy.dim(1), k = a.x.dim(1);
  gemm_f32(exec.pool, Trans::yes, Trans::no, n, k, t, 1.0f, a.dy.data<float>(), n, a.x.data<float>(), k,
           a.accumulate ? 1.0f : 0.0f, a.dw.data<float>(), k, products_of(a.bf16));
}

void rmsnorm_backward(Call& call, Exec& exec) {
  const ops::RmsnormBackward a(call);
  const int64_t c = a.x.dim(1);
  std::vector<float> gain(static_cast<size_t>(c), 1.0f);
  if (a.weight) {
    widen(*a.weight, 0, c, gain.data());
    for (float& value : gain) value += a.offset;
  }
  const float *x = a.x.data<float>(), *dy = a.dy.data<float>();
  float* dx = a.dx.data<float>();
  exec.pool.for_each(a.x.dim(0), rows_grain(c), [&](int64_t t) {
    vector_kernels().rmsnorm_backward(x + t * c, gain.data(), dy + t * c, dx + t * c, c, a.eps, a.accumulate);
  });
}

void layernorm_backward(Call& call, Exec& exec) {
  const ops::LayernormBackward a(call);
  const int64_t c = a.x.dim(1);
  std::vector<float> gain(static_cast<size_t>(a.turns * c), 1.0f);
  if (a.weight) {
    widen(*a.weight, 0, a.turns * c, gain.data());
    for (float& value : gain) value += a.offset;
  }
  const float *x = a.x.data<float>(), *dy = a.dy.data<float>();
  float* dx = a.dx.data<float>();
  exec.pool.for_each(a.x.dim(0), rows_grain(c), [&](int64_t t) {
    vector_kernels().layernorm_backward(x + t * c, gain.data() + t % a.turns * c, dy + t * c, dx + t * c, c, a.eps,
                                        a.accumulate);
  });
}

// Of x Phi(x): Phi(x) + x phi(x).
float gelu_slope(float x) {
  const double at = x;
  const double density = 0.3989422804014327 * exp_f64(-0.5 * at * at);
  return static_cast<float>(0.5 * std::erfc(-at * 0.70710678118654752) + at * density);
}

void activation_backward(Call& call, Exec& exec) {
  const ops::ActivationBackward a(call);
  const float *x = a.x.data<float>(), *dy = a.dy.data<float>();
  float* dx = a.dx.data<float>();
  exec.pool.parallel_for(a.x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    if (a.act != ops::Act::gelu)
      vector_kernels().activate_backward(act_of(a.act), x + begin, dy + begin, dx + begin, end - begin);
    else
      for (int64_t i = begin; i < end; ++i) dx[i] = gelu_slope(x[i]) * dy[i];
  });
}

void gated_activation_backward(Call& call, Exec& exec) {
  const ops::GatedActivationBackward a(call);
  const float *gate = a.gate.data<float>(), *up = a.up.data<float>(), *dy = a.dy.data<float>();
  float *dgate = a.dgate.data<float>(), *dup = a.dup.data<float>();
  exec.pool.parallel_for(a.gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    if (a.act != ops::Act::gelu) {
      vector_kernels().gated_backward(act_of(a.act), gate + begin, up + begin, dy + begin, dgate + begin, dup + begin,
                                      end - begin);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const float g = gate[i], u = up[i], d = dy[i];
      dgate[i] = gelu_slope(g) * u * d;
      dup[i] = gelu(g) * d;
    }
  });
}

void output_error(Call& call, Exec& exec) {
  const ops::OutputError a(call);
  const int64_t c = a.y.dim(1);
  const float *y = a.y.data<float>(), *target = a.target.data<float>();
  float* dy = a.dy.data<float>();
  exec.pool.for_each(a.y.dim(0), rows_grain(c), [&](int64_t t) {
    double sum = 0;
    for (int64_t i = t * c; i < (t + 1) * c; ++i) {
      const float d = y[i] - target[i];
      dy[i] = d;
      sum += static_cast<double>(d) * static_cast<double>(d);
    }
    a.sums.data<double>()[t] = sum;
  });
}

}  // namespace
LPQ_OP(linear_input_gradient, "linear_input_gradient");
LPQ_OP(linear_weight_gradient, "linear_weight_gradient");
LPQ_OP(rmsnorm_backward, "rmsnorm_backward");
LPQ_OP(layernorm_backward, "layernorm_backward");
LPQ_OP(activation_backward, "activation_backward");
LPQ_OP(gated_activation_backward, "gated_activation_backward");
LPQ_OP(output_error, "output_error");
}  // namespace lpq::nn
