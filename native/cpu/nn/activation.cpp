#include <cmath>

#include "cpu/nn/act.h"
#include "cpu/nn/cast.h"
#include "ops/elementwise.h"

namespace lpq::nn {
namespace {

void activation(Call& call, Exec& exec) {
  const ops::Activation a(call);
  require_f32({{&a.x, "x"}});
  const bool exact = a.act == ops::Act::gelu;
  const Act act = act_of(a.act);
  const float* from = a.x.data<float>();
  float* out = a.y.data<float>();
  exec.pool.parallel_for(a.x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    if (exact)
      for (int64_t i = begin; i < end; ++i) out[i] = gelu(from[i]);
    else vector_kernels().activate(act, from + begin, out + begin, end - begin);
  });
}

void soft_cap(Call& call, Exec& exec) {
  const ops::SoftCap a(call);
  const float* from = a.x.data<float>();
  float* out = a.y.data<float>();
  exec.pool.parallel_for(a.x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    vector_kernels().scale(from + begin, a.scale, out + begin, end - begin);
    if (a.cap > 0) vector_kernels().soft_cap(out + begin, a.cap, out + begin, end - begin);
  });
}

void gated_activation(Call& call, Exec& exec) {
  const ops::GatedActivation a(call);
  require_f32({{&a.gate, "gate"}});
  const bool exact = a.act == ops::Act::gelu;
  const Act act = act_of(a.act);
  float* out = a.y.data<float>();
  const auto run = [&](const float* g, const float* u, float* to, int64_t n) {
    if (exact)
      for (int64_t i = 0; i < n; ++i) to[i] = gelu(g[i]) * u[i];
    else vector_kernels().gated(act, g, u, to, n);
  };
  const float *g = a.gate.data<float>() + a.gates.first, *u = a.up.data<float>() + a.ups.first;
  if (!a.rows) {
    exec.pool.parallel_for(a.gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
      run(g + begin, u + begin, out + begin, end - begin);
    });
  } else {
    const int64_t width = a.y.dim(1);
    exec.pool.for_each(a.y.dim(0), rows_grain(width),
                       [&](int64_t t) { run(g + t * a.gates.pitch, u + t * a.ups.pitch, out + t * width, width); });
  }
  if (a.codes) a.codes.quantize(a.y, [&](const char* op, Call& made) { op_table().at(op)(made, exec); });
}

void add(Call& call, Exec& exec) {
  const ops::Add op(call);
  require_dtype(op.b, "b", {op.a.dtype});
  if (op.a.dtype == DType::f64) {  // moments of several devices
    const double *from_a = op.a.data<double>(), *from_b = op.b.data<double>(), scale = op.scale;
    double* out = op.y.data<double>();
    exec.pool.for_each(op.y.elements(), 1 << 15, [&](int64_t i) { out[i] = std::fma(scale, from_b[i], from_a[i]); });
    return;
  }
  const float scale = static_cast<float>(op.scale);
  const float *from_a = op.a.data<float>(), *from_b = op.b.data<float>();
  float* out = op.y.data<float>();
  exec.pool.parallel_for(op.y.elements(), 1 << 16, [&](int64_t begin, int64_t end, int) {
    vector_kernels().add_scaled(from_a + begin, from_b + begin, scale, out + begin, end - begin);
  });
}

}  // namespace
LPQ_OP(activation, "activation");
LPQ_OP(soft_cap, "soft_cap");
LPQ_OP(gated_activation, "gated_activation");
LPQ_OP(add, "add");
}  // namespace lpq::nn
