// cast, zero, add, scale_rows, activation, soft_cap, gated_activation, clamped_swiglu, xielu.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// y = x in y's dtype (f64, f32, f16, bf16; also i32 -> f32), any equal shapes, rounded to nearest even, overflow to
// infinity.
struct Cast {
  const Tensor &x, &y;

  static Cast parse(const Call& call) {
    Arguments a(call, "cast");
    const Tensor& x = a.input("x");
    require_dtype(x, "x", {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32});
    const Tensor& y = a.output("y", {DType::f64, DType::f32, DType::f16, DType::bf16}, x.shape);
    require(x.dtype != DType::i32 || y.dtype == DType::f32, "i32 is cast to f32 only");
    return a.done(), Cast{x, y};
  }
};

// y = 0, any dtype and shape.
struct Zero {
  const Tensor& y;

  static Zero parse(const Call& call) {
    Arguments a(call, "zero");
    const Tensor& y = a.output("y");
    return a.done(), Zero{y};
  }
};

// y = a + b * scale (1), any equal shapes; a and y f32 (on the CPU also f64), b of that dtype (on CUDA f32, f16 or
// bf16); y may be a.
struct Add {
  const Tensor &a, &b, &y;
  double scale;

  static Add parse(const Call& call) {
    Arguments from(call, "add");
    const Tensor& a = from.input("a");
    require_dtype(a, "a", {DType::f32, DType::f64});
    const Tensor& b = from.input("b", {a.dtype, DType::f16, DType::bf16}, a.shape);
    const Add of{a, b, from.output("y", {a.dtype}, a.shape), from.number("scale", 1)};
    return from.done(), of;
  }
};

// y[t] = x[t] * scales[t] * factor (1), row by row; x, y f32 (on CUDA f16 or bf16 too) [T,C] of one dtype, y may be x;
// scales [T], or one for all rows, f32 (one: f16 or bf16 too), 1 where absent. With `first` instead `width` columns of
// each row from there on, in place.
struct ScaleRows {
  const Tensor &x, &y;
  const Tensor* scales;
  float factor;
  int64_t width;
  Columns columns;

  static ScaleRows parse(const Call& call) {
    Arguments a(call, "scale_rows");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &y = a.output("y", {x.dtype}, x.shape);
    const int64_t width = a.integer("width", x.dim(1));
    const Columns columns = a.columns("first", x, "x", width);
    require(columns.pitch == width || y.raw() == x.raw(), "some columns are scaled in place only");
    const Tensor* scales = a.left() > 0 ? &a.input("scales") : nullptr;
    if (scales) {
      require_dtype(*scales, "scales", kFloats);
      const int64_t count = scales->elements();
      require(count == 1 || (count == x.dim(0) && scales->dtype == DType::f32),
              "scales has " + std::to_string(count) + " elements of " + std::string(dtype_name(scales->dtype)) +
                  ", not 1 or " + std::to_string(x.dim(0)) + " of f32");
    }
    const ScaleRows of{x, y, scales, a.real("factor", 1), width, columns};
    return a.done(), of;
  }
};

// In the order of elementwise.cu. gelu: x Φ(x); gelu_tanh: its tanh approximation (Hendrycks and Gimpel 2016); relu2:
// max(x, 0)^2; quick_gelu: x sigmoid(1.702 x).
enum class Act : int { silu, gelu, gelu_tanh, relu, relu2, quick_gelu, sigmoid };

inline Act read_act(Arguments& a) {
  return static_cast<Act>(a.one_of("act", {"silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid"}));
}

// y = act(x); f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be x.
struct Activation {
  const Tensor &x, &y;
  Act act;

  static Activation parse(const Call& call) {
    Arguments a(call, "activation");
    const Tensor& x = a.input("x");
    require_dtype(x, "x", kFloats);
    const Activation of{x, a.output("y", {x.dtype}, x.shape), read_act(a)};
    return a.done(), of;
  }
};

// y = x * scale (1), then with a cap > 0 (0: none) cap * tanh(y / cap); f32, any equal shapes; y may be x.
struct SoftCap {
  const Tensor &x, &y;
  float scale, cap;

  static SoftCap parse(const Call& call) {
    Arguments a(call, "soft_cap");
    const Tensor& x = a.input("x");
    require_dtype(x, "x", {DType::f32});
    const SoftCap of{x, a.output("y", {DType::f32}, x.shape), a.real("scale", 1), a.real("cap", 0)};
    require(of.cap >= 0, "cap is " + std::to_string(of.cap));
    return a.done(), of;
  }
};

// y = act(gate) * up; f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be gate or up. With `first` and
// `upFirst` y [T,C] is neither, and gate and up are C columns of matrices, maybe of one, from there on.
struct GatedActivation {
  const Tensor &gate, &up, &y;
  Act act;
  bool rows;  // some columns of matrices
  Columns gates, ups;

  static GatedActivation parse(const Call& call) {
    Arguments a(call, "gated_activation");
    const Tensor &gate = a.input("gate"), &up = a.input("up"), &y = a.output("y");
    require_dtype(gate, "gate", kFloats);
    const Act act = read_act(a);
    const bool rows = a.integer("first", -1) >= 0;
    Columns gates{}, ups{};
    if (rows) {
      require_shape(gate, "gate", {-1, -1});
      require_tensor(y, "y", gate.dtype, {gate.dim(0), -1});
      require_tensor(up, "up", gate.dtype, {gate.dim(0), -1});
      gates = a.columns("first", gate, "gate", y.dim(1)), ups = a.columns("upFirst", up, "up", y.dim(1));
      require(y.dim(0) == 0 || (y.raw() != gate.raw() && y.raw() != up.raw()), "y must be neither gate nor up");
    } else {
      require_tensor(up, "up", gate.dtype, gate.shape);
      require_tensor(y, "y", gate.dtype, gate.shape);
    }
    return a.done(), GatedActivation{gate, up, y, act, rows, gates, ups};
  }
};

// y = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit), the gate of GPT-OSS's experts; f32
// (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be gate or up. alpha, limit > 0.
struct ClampedSwiglu {
  const Tensor &gate, &up, &y;
  float alpha, limit;

  static ClampedSwiglu parse(const Call& call) {
    Arguments a(call, "clamped_swiglu");
    const Tensor& gate = a.input("gate");
    require_dtype(gate, "gate", kFloats);
    const ClampedSwiglu of{gate, a.input("up", {gate.dtype}, gate.shape), a.output("y", {gate.dtype}, gate.shape),
                           a.real("alpha"), a.real("limit")};
    require(of.alpha > 0, "alpha is " + std::to_string(of.alpha) + ", not positive");
    require(of.limit > 0, "limit is " + std::to_string(of.limit) + ", not positive");
    return a.done(), of;
  }
};

// xIELU (arXiv:2411.13010): y = alphaP x^2 + beta x where x > 0, else alphaN (expm1(min(x, eps)) - x) + beta x, with
// alphaP = softplus(positive), alphaN = beta + softplus(negative); positive, negative, beta, eps of one element each,
// f32, f16 or bf16. x, y f32 (on CUDA f16 or bf16 too), any equal shapes and dtypes; y may be x.
struct Xielu {
  const Tensor &x, &positive, &negative, &beta, &eps, &y;

  static Xielu parse(const Call& call) {
    Arguments a(call, "xielu");
    const Tensor& x = a.input("x");
    require_dtype(x, "x", kFloats);
    const auto one = [&](const char* name) -> const Tensor& {
      const Tensor& tensor = a.input(name);
      require_dtype(tensor, name, kFloats);
      require(tensor.elements() == 1, std::string(name) + " has " + std::to_string(tensor.elements()) + " elements");
      return tensor;
    };
    const Tensor &positive = one("positive"), &negative = one("negative"), &beta = one("beta"), &eps = one("eps");
    const Xielu of{x, positive, negative, beta, eps, a.output("y", {x.dtype}, x.shape)};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
