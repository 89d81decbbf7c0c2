// xIELU, whose parameters are learned (arXiv:2411.13010).
#include <cmath>

#include "cpu/nn/cast.h"
#include "ops/backward.h"

namespace lpq::nn {
namespace {

float only(const Tensor& tensor) {
  float value = 0;
  widen(tensor, 0, 1, &value);
  return value;
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

void xielu(Call& call, Exec& exec) {
  const ops::Xielu a(call);
  require_f32({{&a.x, "x"}});
  const double beta = only(a.beta), eps = only(a.eps);
  const double above = softplus(only(a.positive)), below = beta + softplus(only(a.negative));
  const float* from = a.x.data<float>();
  float* out = a.y.data<float>();
  exec.pool.for_each(a.x.elements(), 1 << 13, [&](int64_t i) {
    const double x = from[i];
    const double bent = x > 0 ? above * x * x : below * (std::expm1(x < eps ? x : eps) - x);
    out[i] = static_cast<float>(bent + beta * x);
  });
}

void xielu_backward(Call& call, Exec& exec) {
  const ops::XieluBackward a(call);
  const double beta = only(a.beta), eps = only(a.eps);
  const double above = softplus(only(a.positive)), below = beta + softplus(only(a.negative));
  const float *from = a.x.data<float>(), *dy = a.dy.data<float>();
  float* out = a.dx.data<float>();
  exec.pool.for_each(a.x.elements(), 1 << 13, [&](int64_t i) {
    const double x = from[i];
    const double bent = x > 0 ? 2 * above * x : below * (x < eps ? std::expm1(x) : -1);
    out[i] = static_cast<float>((bent + beta) * static_cast<double>(dy[i]));
  });
}

}  // namespace
LPQ_OP(xielu, "xielu");
LPQ_OP(xielu_backward, "xielu_backward");
}  // namespace lpq::nn
