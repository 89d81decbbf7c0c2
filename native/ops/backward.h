// Vector-Jacobian products: linear_input_gradient, linear_weight_gradient, rmsnorm_backward, layernorm_backward,
// rope_backward, attention_backward, activation_backward, gated_activation_backward, clamped_swiglu_backward,
// limited_gate_backward, xielu_backward, soft_cap_backward, output_error, divergence; of layers with a state in
// backward_recurrent.h. Activations and gradients f32. `dy` is the gradient of a loss with respect to y, the forward
// operation's output; dx is with respect to x. On CUDA sums of a row are in fp32, but for those of output_error and
// divergence, whose terms alone are.
#pragma once
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace lpq::ops {

// Of linear: dx = dy W; dy [T,N], W f32, f16 or bf16 [N,K], dx [T,K], none of the others. accumulate: added to dx.
// Sums as of linear, bf16 too.
struct LinearInputGradient : Arguments {
  const Tensor& dy = input("dy", {f32}, {-1, -1});
  const Tensor& weight = input("weight", kFloats, {dy.dim(1), -1});
  const Tensor& dx = output("dx", {f32}, {dy.dim(0), weight.dim(1)});
  bool accumulate = flag("accumulate"), bf16 = flag("bf16");

  explicit LinearInputGradient(const Call& call) : Arguments(call, "linear_input_gradient") {
    require(dx.raw() != dy.raw() || dx.elements() == 0, "dx must not be dy");
    done();
  }
};

// Of linear: dW = dyᵀ x; x [T,K], dy [T,N], dW [N,K]. accumulate: added to dW. bf16: as of linear.
struct LinearWeightGradient : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& dy = input("dy", {f32}, {x.dim(0), -1});
  const Tensor& dw = output("dw", {f32}, {dy.dim(1), x.dim(1)});
  bool accumulate = flag("accumulate"), bf16 = flag("bf16");

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

// Of layernorm over whole rows, likewise; weight of `turns` (1) rows, of which row t takes row t mod turns.
struct LayernormBackward : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& dy = input("dy", {f32}, x.shape);
  int64_t turns = at_least(1, "turns", 1);
  const Tensor* weight = norm_vector(*this, "weight", turns* x.dim(1));
  const Tensor& dx = output("dx", {f32}, x.shape);
  double eps = number("eps");
  float offset = real("offset", 0);
  bool accumulate = flag("accumulate");

  explicit LayernormBackward(const Call& call) : Arguments(call, "layernorm_backward") {
    require(x.dim(0) % turns == 0,
            "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(x.dim(0)) + " rows");
    done();
  }
};

// Of attention, its tensors without columns of others: dq, dk, dv of the shapes of q, k, v, and no other tensor of the
// call. Scores are computed again. `chosen`: of selected_attention, over the tokens that `selected`, choices and block
// name there, which are taken as given. bf16: as of attention. On CUDA, too, heads of at most 576 dims: with bf16 on
// tensor cores, for at most 256 dims and no keys that are chosen, where P and its gradient are rounded to bf16, too;
// otherwise fp32 throughout.
struct AttentionBackward : Arguments {
  AttentionShape shape = AttentionShape::read(*this);
  const Tensor& q = input("q", {f32}, {-1, shape.queries()});
  const Tensor& k = input("k", {f32}, {q.dim(0), shape.keys()});
  const Tensor& v = input("v", {f32}, {q.dim(0), shape.values()});
  const Tensor& starts = read_starts(*this);
  const Tensor& dy = input("dy", {f32}, {q.dim(0), shape.outputs()});
  int64_t choices = at_least(1, "choices", 1), block = at_least(1, "block", 1);
  bool chosen = flag("chosen"), bf16 = flag("bf16");
  const Tensor* selected = input_if(chosen, "selected", {i32}, {q.dim(0), -1});
  const Tensor* sinks = last_input("sinks", kFloats, {shape.heads});
  const Tensor& dq = output("dq", {f32}, q.shape);
  const Tensor& dk = output("dk", {f32}, k.shape);
  const Tensor& dv = output("dv", {f32}, v.shape);

  explicit AttentionBackward(const Call& call) : Arguments(call, "attention_backward") {
    require(shape.heads % choices == 0 && (!chosen || selected->dim(1) % choices == 0),
            "choices is " + std::to_string(choices) + ", which divides heads and columns of selected");
    done();
  }
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

// Of clamped_swiglu: dgate and dup, any equal shapes; either may be dy.
struct ClampedSwigluBackward : Arguments {
  const Tensor& gate = input("gate", {f32});
  const Tensor& up = input("up", {f32}, gate.shape);
  const Tensor& dy = input("dy", {f32}, gate.shape);
  const Tensor& dgate = output("dgate", {f32}, gate.shape);
  const Tensor& dup = output("dup", {f32}, gate.shape);
  float alpha = real("alpha"), limit = real("limit");

  explicit ClampedSwigluBackward(const Call& call) : Arguments(call, "clamped_swiglu_backward") {
    require(gate.elements() == 0 || dgate.raw() != dup.raw(), "dgate must not be dup");
    require(alpha > 0, "alpha is " + std::to_string(alpha) + ", not positive");
    require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
    done();
  }
};

// Of limited_gate, likewise.
struct LimitedGateBackward : Arguments {
  const Tensor& gate = input("gate", {f32});
  const Tensor& up = input("up", {f32}, gate.shape);
  const Tensor& dy = input("dy", {f32}, gate.shape);
  const Tensor& dgate = output("dgate", {f32}, gate.shape);
  const Tensor& dup = output("dup", {f32}, gate.shape);
  float limit = real("limit");

  explicit LimitedGateBackward(const Call& call) : Arguments(call, "limited_gate_backward") {
    require(gate.elements() == 0 || dgate.raw() != dup.raw(), "dgate must not be dup");
    require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
    done();
  }
};

// Of xielu: dx, any shape, which may be dy.
struct XieluBackward : Arguments {
  const Tensor& x = input("x", {f32});
  const Tensor& positive = input("positive", kFloats);
  const Tensor& negative = input("negative", kFloats);
  const Tensor& beta = input("beta", kFloats);
  const Tensor& eps = input("eps", kFloats);
  const Tensor& dy = input("dy", {f32}, x.shape);
  const Tensor& dx = output("dx", {f32}, x.shape);

  explicit XieluBackward(const Call& call) : Arguments(call, "xielu_backward") {
    for (const auto& [one, name] :
         {std::pair{&positive, "positive"}, {&negative, "negative"}, {&beta, "beta"}, {&eps, "eps"}})
      require(one->elements() == 1, std::string(name) + " has " + std::to_string(one->elements()) + " elements");
    done();
  }
};

// Of soft_cap, from its output: dx = (1 - (y / cap)^2) scale dy, without a cap scale dy; any equal shapes; dx may be
// dy.
struct SoftCapBackward : Arguments {
  const Tensor& y = input("y", {f32});
  const Tensor& dy = input("dy", {f32}, y.shape);
  const Tensor& dx = output("dx", {f32}, y.shape);
  float scale = real("scale", 1), cap = real("cap", 0);

  explicit SoftCapBackward(const Call& call) : Arguments(call, "soft_cap_backward") {
    require(cap >= 0, "cap is " + std::to_string(cap));
    done();
  }
};

// KL(p || q) row by row, sums f64 [T], of p = softmax(target) and q = softmax(logits), and its gradient with respect to
// the logits times `factor` (1): dlogits = factor (q - p); all f32 [T,V], V > 0; dlogits may be logits.
struct Divergence : Arguments {
  const Tensor& logits = input("logits", {f32}, {-1, -1});
  const Tensor& target = input("target", {f32}, logits.shape);
  const Tensor& dlogits = output("dlogits", {f32}, logits.shape);
  const Tensor& sums = output("sums", {f64}, {logits.dim(0)});
  float factor = real("factor", 1);

  explicit Divergence(const Call& call) : Arguments(call, "divergence") {
    require(logits.dim(1) > 0, "rows have no logits");
    require(dlogits.raw() != target.raw() || logits.elements() == 0, "dlogits must not be target");
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
