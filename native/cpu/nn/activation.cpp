#include <cmath>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

constexpr const char* kActs = "silu, gelu, gelu_tanh, relu, relu2, quick_gelu or sigmoid";

// The vectorised activation of this name; `exact` for gelu: x times the normal distribution function of x, in f64,
// which has no vector variants, so libm's erfc will do.
Act act_named(const std::string& act, bool& exact) {
  exact = act == "gelu";
  if (act == "silu" || exact) return Act::silu;
  if (act == "gelu_tanh") return Act::gelu_tanh;
  if (act == "relu") return Act::relu;
  if (act == "relu2") return Act::relu2;
  if (act == "quick_gelu") return Act::quick_gelu;
  require(act == "sigmoid", "act is '" + act + "', not " + kActs);
  return Act::sigmoid;
}

float gelu(float x) { return static_cast<float>(0.5 * x * std::erfc(-static_cast<double>(x) * 0.70710678118654752)); }

void activation(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_dtype(x, "x", {DType::f32});
  require_tensor(y, "y", DType::f32, x.shape);
  bool exact;
  const Act act = act_named(call.params.text("act"), exact);
  const float* from = x.data<float>();
  float* out = y.data<float>();
  exec.pool.parallel_for(x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    if (exact)
      for (int64_t i = begin; i < end; ++i) out[i] = gelu(from[i]);
    else vector_kernels().activate(act, from + begin, out + begin, end - begin);
  });
}

void soft_cap(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_dtype(x, "x", {DType::f32});
  require_tensor(y, "y", DType::f32, x.shape);
  const float scale = static_cast<float>(call.params.number("scale", 1.0));
  const float cap = static_cast<float>(call.params.number("cap", 0.0));
  require(cap >= 0, "cap is " + std::to_string(cap));
  const float* from = x.data<float>();
  float* out = y.data<float>();
  exec.pool.parallel_for(x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    vector_kernels().scale(from + begin, scale, out + begin, end - begin);
    if (cap > 0) vector_kernels().soft_cap(out + begin, cap, out + begin, end - begin);
  });
}

void gated_activation(Call& call, Exec& exec) {
  const Tensor &gate = call.input(0), &up = call.input(1), &y = call.output(0);
  require_dtype(gate, "gate", {DType::f32});
  bool exact;
  const Act act = act_named(call.params.text("act"), exact);
  float* out = y.data<float>();
  const auto run = [&](const float* g, const float* u, float* to, int64_t n) {
    if (exact)
      for (int64_t i = 0; i < n; ++i) to[i] = gelu(g[i]) * u[i];
    else vector_kernels().gated(act, g, u, to, n);
  };
  if (call.params.integer("first", -1) < 0) {
    require_tensor(up, "up", DType::f32, gate.shape);
    require_tensor(y, "y", DType::f32, gate.shape);
    const float *g = gate.data<float>(), *u = up.data<float>();
    exec.pool.parallel_for(gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
      run(g + begin, u + begin, out + begin, end - begin);
    });
    return;
  }
  require_tensor(y, "y", DType::f32, {gate.dim(0), -1});
  const int64_t rows = y.dim(0), width = y.dim(1);
  require_tensor(up, "up", DType::f32, {rows, -1});
  const Columns gates = columns_of(call.params, "first", gate, "gate", width),
                ups = columns_of(call.params, "upFirst", up, "up", width);
  require(rows == 0 || (y.raw() != gate.raw() && y.raw() != up.raw()), "y must be neither gate nor up");
  const float *g = gate.data<float>() + gates.first, *u = up.data<float>() + ups.first;
  exec.pool.parallel_for(rows, rows_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) run(g + t * gates.pitch, u + t * ups.pitch, out + t * width, width);
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
LPQ_OP(activation, "activation");
LPQ_OP(soft_cap, "soft_cap");
LPQ_OP(gated_activation, "gated_activation");
LPQ_OP(add, "add");
}  // namespace lpq::nn
