// clamped_swiglu_backward, limited_gate_backward: gates whose sides are cut off have no slope beyond the limit.
#include "cpu/math.h"
#include "cpu/nn/vector.h"
#include "ops/backward.h"

namespace lpq::nn {
namespace {

// Of (clamp(up, -limit, limit) + more) g sigmoid(alpha g), g = min(gate, limit).
template <class Of>
void gate_backward(const Of& a, Exec& exec, double alpha, double more) {
  const float *gate = a.gate.template data<float>(), *up = a.up.template data<float>();
  const float *dy = a.dy.template data<float>(), limit = a.limit;
  float *dgate = a.dgate.template data<float>(), *dup = a.dup.template data<float>();
  exec.pool.parallel_for(a.gate.elements(), 1 << 13, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float x = gate[i], b = up[i];
      const double d = dy[i], g = x > limit ? limit : x;
      const double line = static_cast<double>(b > limit ? limit : b < -limit ? -limit : b) + more;
      const double share = 1 / (1 + exp_f64(-alpha * g));
      dgate[i] = x > limit ? 0.0f : static_cast<float>(line * share * (1 + alpha * g * (1 - share)) * d);
      dup[i] = b > limit || b < -limit ? 0.0f : static_cast<float>(g * share * d);
    }
  });
}

void clamped_swiglu_backward(Call& call, Exec& exec) {
  const ops::ClampedSwigluBackward a(call);
  gate_backward(a, exec, static_cast<double>(a.alpha), 1);
}

void limited_gate_backward(Call& call, Exec& exec) { gate_backward(ops::LimitedGateBackward(call), exec, 1, 0); }

}  // namespace
LPQ_OP(clamped_swiglu_backward, "clamped_swiglu_backward");
LPQ_OP(limited_gate_backward, "limited_gate_backward");
}  // namespace lpq::nn
