#include <cmath>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void gated_activation(Call& call, Exec& exec) {
  const Tensor &gate = call.input(0), &up = call.input(1), &y = call.output(0);
  require_dtype(gate, "gate", {DType::f32});
  require_tensor(up, "up", DType::f32, gate.shape);
  require_tensor(y, "y", DType::f32, gate.shape);
  const std::string& act = call.params.text("act");
  require(act == "silu" || act == "gelu" || act == "gelu_tanh", "act is '" + act + "', not silu, gelu or gelu_tanh");
  const float *g = gate.data<float>(), *u = up.data<float>();
  float* out = y.data<float>();
  exec.pool.parallel_for(gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    if (act == "gelu") {  // x * (normal distribution function of x), in f64; no vector variants, so libm's erfc will do
      for (int64_t i = begin; i < end; ++i)
        out[i] = static_cast<float>(0.5 * g[i] * std::erfc(-static_cast<double>(g[i]) * 0.70710678118654752)) * u[i];
      return;
    }
    vector_kernels().gated(act == "silu" ? Act::silu : Act::gelu_tanh, g + begin, u + begin, out + begin, end - begin);
  });
}

void add(Call& call, Exec& exec) {
  const Tensor &a = call.input(0), &b = call.input(1), &y = call.output(0);
  require_dtype(a, "a", {DType::f32, DType::f64});
  require_tensor(b, "b", a.dtype, a.shape);
  require_tensor(y, "y", a.dtype, a.shape);
  if (a.dtype == DType::f64) {  // moments of several devices
    const double *from_a = a.data<double>(), *from_b = b.data<double>(), scale = call.params.number("scale", 1.0);
    double* out = y.data<double>();
    exec.pool.parallel_for(a.elements(), 1 << 15, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) out[i] = std::fma(scale, from_b[i], from_a[i]);
    });
    return;
  }
  const float scale = static_cast<float>(call.params.number("scale", 1.0));
  const float *from_a = a.data<float>(), *from_b = b.data<float>();
  float* out = y.data<float>();
  exec.pool.parallel_for(a.elements(), 1 << 16, [&](int64_t begin, int64_t end, int) {
    vector_kernels().add_scaled(from_a + begin, from_b + begin, scale, out + begin, end - begin);
  });
}

}  // namespace
LPQ_OP(gated_activation, "gated_activation");
LPQ_OP(add, "add");
}  // namespace lpq::nn
