// cast, zero, add, scale_rows, activation, soft_cap, gated_activation, clamped_swiglu, xielu.
#pragma once
#include "ops/token_codes.h"

namespace lpq::ops {

// y = x in y's dtype (f64, f32, f16, bf16; also i32 -> f32), any equal shapes, rounded to nearest even, overflow to
// infinity.
struct Cast : Arguments {
  const Tensor& x = input("x", {f64, f32, f16, bf16, i32});
  const Tensor& y = output("y", {f64, f32, f16, bf16}, x.shape);

  explicit Cast(const Call& call) : Arguments(call, "cast") {
    require(x.dtype != i32 || y.dtype == f32, "i32 is cast to f32 only");
    done();
  }
};

// y = 0, any dtype and shape.
struct Zero : Arguments {
  const Tensor& y = output("y");

  explicit Zero(const Call& call) : Arguments(call, "zero") { done(); }
};

// y = a + b * scale (1), any equal shapes; a and y f32 (on the CPU also f64), b of that dtype (on CUDA f32, f16 or
// bf16); y may be a.
struct Add : Arguments {
  const Tensor& a = input("a", {f32, f64});
  const Tensor& b = input("b", {a.dtype, f16, bf16}, a.shape);
  const Tensor& y = output("y", {a.dtype}, a.shape);
  double scale = number("scale", 1);

  explicit Add(const Call& call) : Arguments(call, "add") { done(); }
};

// y[t] = x[t] * scales[t] * factor (1), row by row; x, y f32 (on CUDA f16 or bf16 too) [T,C] of one dtype, y may be x;
// scales [T], or one for all rows, f32 (one: f16 or bf16 too), 1 where absent. With `first` instead `width` columns of
// each row from there on, in place.
struct ScaleRows : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& y = output("y", {x.dtype}, x.shape);
  int64_t width = integer("width", x.dim(1));
  Columns columns = some_columns("first", x, "x", width);
  const Tensor* scales = left() > 0 ? &input("scales", kFloats) : nullptr;
  float factor = real("factor", 1);

  explicit ScaleRows(const Call& call) : Arguments(call, "scale_rows") {
    require(columns.pitch == width || y.raw() == x.raw(), "some columns are scaled in place only");
    const int64_t count = scales ? scales->elements() : 1;
    require(count == 1 || (count == x.dim(0) && scales->dtype == f32),
            "scales has " + std::to_string(count) + " elements of " +
                std::string(dtype_name(scales ? scales->dtype : f32)) + ", not 1 or " + std::to_string(x.dim(0)) +
                " of f32");
    done();
  }
};

// In the order of elementwise.cu. gelu: x Φ(x); gelu_tanh: its tanh approximation (Hendrycks and Gimpel 2016); relu2:
// max(x, 0)^2; quick_gelu: x sigmoid(1.702 x).
enum class Act : int { silu, gelu, gelu_tanh, relu, relu2, quick_gelu, sigmoid };

inline Act read_act(Arguments& a) {
  return static_cast<Act>(a.one_of("act", {"silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid"}));
}

// y = act(x); f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be x.
struct Activation : Arguments {
  const Tensor& x = input("x", kFloats);
  const Tensor& y = output("y", {x.dtype}, x.shape);
  Act act = read_act(*this);

  explicit Activation(const Call& call) : Arguments(call, "activation") { done(); }
};

// y = x * scale (1), then with a cap > 0 (0: none) cap * tanh(y / cap); f32, any equal shapes; y may be x.
struct SoftCap : Arguments {
  const Tensor& x = input("x", {f32});
  const Tensor& y = output("y", {f32}, x.shape);
  float scale = real("scale", 1), cap = real("cap", 0);

  explicit SoftCap(const Call& call) : Arguments(call, "soft_cap") {
    require(cap >= 0, "cap is " + std::to_string(cap));
    done();
  }
};

// y = act(gate) * up; f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be gate or up. With `first` and
// `upFirst` y [T,C] is neither, and gate and up are C columns of matrices, maybe of one, from there on. Codes of y,
// too, where they are given.
struct GatedActivation : Arguments {
  const Tensor& gate = input("gate", kFloats);
  bool rows = integer("first", -1) >= 0;  // some columns of matrices
  Dims shape = rows ? Dims{gate.shape.empty() ? -1 : gate.dim(0), -1} : gate.shape;
  const Tensor& up = input("up", {gate.dtype}, shape);
  const Tensor& y = output("y", {gate.dtype}, shape);
  TokenCodes codes = TokenCodes::read(*this, y, &Arguments::output);
  Act act = read_act(*this);
  Columns gates = rows ? some_columns("first", gate, "gate", y.dim(1)) : Columns{};
  Columns ups = rows ? some_columns("upFirst", up, "up", y.dim(1)) : Columns{};

  explicit GatedActivation(const Call& call) : Arguments(call, "gated_activation") {
    require(!rows || y.dim(0) == 0 || (y.raw() != gate.raw() && y.raw() != up.raw()), "y must be neither gate nor up");
    done();
  }
};

// y = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit), the gate of GPT-OSS's experts; f32
// (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be gate or up. alpha, limit > 0.
struct ClampedSwiglu : Arguments {
  const Tensor& gate = input("gate", kFloats);
  const Tensor& up = input("up", {gate.dtype}, gate.shape);
  const Tensor& y = output("y", {gate.dtype}, gate.shape);
  float alpha = real("alpha"), limit = real("limit");

  explicit ClampedSwiglu(const Call& call) : Arguments(call, "clamped_swiglu") {
    require(alpha > 0, "alpha is " + std::to_string(alpha) + ", not positive");
    require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
    done();
  }
};

// xIELU (arXiv:2411.13010): y = alphaP x^2 + beta x where x > 0, else alphaN (expm1(min(x, eps)) - x) + beta x, with
// alphaP = softplus(positive), alphaN = beta + softplus(negative); positive, negative, beta, eps of one element each,
// f32, f16 or bf16. x, y f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be x.
struct Xielu : Arguments {
  const Tensor& x = input("x", kFloats);
  const Tensor& positive = input("positive", kFloats);
  const Tensor& negative = input("negative", kFloats);
  const Tensor& beta = input("beta", kFloats);
  const Tensor& eps = input("eps", kFloats);
  const Tensor& y = output("y", {x.dtype}, x.shape);

  explicit Xielu(const Call& call) : Arguments(call, "xielu") {
    for (const auto& [one, name] :
         {std::pair{&positive, "positive"}, {&negative, "negative"}, {&beta, "beta"}, {&eps, "eps"}})
      require(one->elements() == 1, std::string(name) + " has " + std::to_string(one->elements()) + " elements");
    done();
  }
};

}  // namespace lpq::ops
