// Vector-Jacobian products: linear_input_gradient, linear_weight_gradient, rmsnorm_backward, rope_backward,
// attention_backward, activation_backward, gated_activation_backward, output_error; of layers with a state in
// backward_recurrent.h. CPU only; activations and gradients
// f32. `dy` is the gradient of a loss with respect to y, the forward operation's output; dx is with respect to x.
#pragma once
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace lpq::ops {

// Of linear: dx = dy W; dy [T,N], W f32, f16 or bf16 [N,K], dx [T,K], none of the others. accumulate: added to dx.
// Sums as of linear.
struct LinearInputGradient : Arguments {
  const Tensor& dy = input("dy", {f32}, {-1, -1});
  const Tensor& weight = input("weight", kFloats, {dy.dim(1), -1});
  const Tensor& dx = output("dx", {f32}, {dy.dim(0), weight.dim(1)});
  bool accumulate = flag("accumulate");

  explicit LinearInputGradient(const Call& call) : Arguments(call, "linear_input_gradient") {
    require(dx.raw() != dy.raw() || dx.elements() == 0, "dx must not be dy");
    done();
  }
};

// Of linear: dW = dyᵀ x; x [T,K], dy [T,N], dW [N,K]. accumulate: added to dW.
struct LinearWeightGradient : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& dy = input("dy", {f32}, {x.dim(0), -1});
  const Tensor& dw = output("dw", {f32}, {dy.dim(1), x.dim(1)});
  bool accumulate = flag("accumulate");

  explicit LinearWeightGradient(const Call& call) : Arguments(call, "linear_weight_gradient") { done(); }
};

// Of rmsnorm over whole rows: x, dy, dx [T,C], weight f32, f16 or bf16 [C], 1 where absent. accumulate: added to dx;
// without it dx may be dy.
struct RmsnormBackward : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& dy = input("dy", {f32}, x.shape);
  const Tensor* weight = last_input("weight", kFloats, {x.dim(1)});
  const Tensor& dx = output("dx", {f32}, x.shape);
  double eps = number("eps");
  float offset = real("offset", 0);
  bool accumulate = flag("accumulate");

  explicit RmsnormBackward(const Call& call) : Arguments(call, "rmsnorm_backward") { done(); }
};

// Of attention, its tensors without columns of others: dq, dk, dv of the shapes of q, k, v, and no other tensor of the
// call. Scores are computed again.
struct AttentionBackward : Arguments {
  AttentionShape shape = AttentionShape::read(*this);
  const Tensor& q = input("q", {f32}, {-1, shape.queries()});
  const Tensor& k = input("k", {f32}, {q.dim(0), shape.keys()});
  const Tensor& v = input("v", {f32}, {q.dim(0), shape.values()});
  const Tensor& starts = read_starts(*this);
  const Tensor& dy = input("dy", {f32}, {q.dim(0), shape.outputs()});
  const Tensor* sinks = last_input("sinks", kFloats, {shape.heads});
  const Tensor& dq = output("dq", {f32}, q.shape);
  const Tensor& dk = output("dk", {f32}, k.shape);
  const Tensor& dv = output("dv", {f32}, v.shape);

  explicit AttentionBackward(const Call& call) : Arguments(call, "attention_backward") { done(); }
};

// Of activation: dx = act'(x) dy, any equal shapes; dx may be dy.
struct ActivationBackward : Arguments {
  const Tensor& x = input("x", {f32});
  const Tensor& dy = input("dy", {f32}, x.shape);
  const Tensor& dx = output("dx", {f32}, x.shape);
  Act act = read_act(*this);

  explicit ActivationBackward(const Call& call) : Arguments(call, "activation_backward") { done(); }
};

// Of gated_activation: dgate = act'(gate) up dy, dup = act(gate) dy, any equal shapes; dgate or dup may be dy.
struct GatedActivationBackward : Arguments {
  const Tensor& gate = input("gate", {f32});
  const Tensor& up = input("up", {f32}, gate.shape);
  const Tensor& dy = input("dy", {f32}, gate.shape);
  const Tensor& dgate = output("dgate", {f32}, gate.shape);
  const Tensor& dup = output("dup", {f32}, gate.shape);
  Act act = read_act(*this);

  explicit GatedActivationBackward(const Call& call) : Arguments(call, "gated_activation_backward") {
    require(gate.elements() == 0 || dgate.raw() != dup.raw(), "dgate must not be dup");
    done();
  }
};

// dy = y - target, half the gradient of the sum of squares, and that sum row by row, f64 [T]; y, target, dy [T,C]; dy
// may be y.
struct OutputError : Arguments {
  const Tensor& y = input("y", {f32}, {-1, -1});
  const Tensor& target = input("target", {f32}, y.shape);
  const Tensor& dy = output("dy", {f32}, y.shape);
  const Tensor& sums = output("sums", {f64}, {y.dim(0)});

  explicit OutputError(const Call& call) : Arguments(call, "output_error") { done(); }
};

}  // namespace lpq::ops
