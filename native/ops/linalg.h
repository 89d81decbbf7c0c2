// linear, second moments (gram_accumulate, cross_accumulate, gram_finish, cross_drift, diagonal) and cholesky.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Of a matrix as wide as it is high.
inline const Tensor& square(const Tensor& matrix, const char* name, Types types) {
  require_dtype(matrix, name, types);
  require_shape(matrix, name, {-1, -1});
  require_shape(matrix, name, {matrix.dim(0), matrix.dim(0)});
  return matrix;
}

// y = x Wᵀ + bias (accumulate: added to y); x f32 (on CUDA f16 or bf16 too) [T,K], W f32, f16 or bf16 [N,K], bias
// likewise [N] (optional), y f32 (on CUDA also x's dtype) [T,N], not x. fp32: on the CPU a chain of fma for every 512 k
// from 0, then added in order to (y +) bias.
struct Linear {
  const Tensor &x, &weight, &y;
  const Tensor* bias;
  bool accumulate;

  static Linear parse(const Call& call) {
    Arguments a(call, "linear");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &weight = a.input("weight", kFloats, {-1, x.dim(1)});
    const int64_t n = weight.dim(0);
    const Tensor& y = a.output("y", {DType::f32, x.dtype}, {x.dim(0), n});
    require(y.raw() != x.raw() || y.elements() == 0, "y must not be x");
    const Linear of{x, weight, y, a.input_if(a.left() > 0, "bias", kFloats, {n}), a.flag("accumulate")};
    return a.done(), of;
  }
};

// H += weight (1) * xᵀx for x f32 [T,K] into the symmetric H f64 [K,K]; or C += weight * aᵀb for a, b f32 [T,K]. On
// CUDA x, a and b f32, f16 or bf16, sums f32 or f64. Products accumulate in fp32 over at most 512 rows, then in f64
// (CUDA: 16-bit x over all rows of the call, then in H's dtype; only the lower triangle of H, gram_finish). NaN and
// infinity: LPQ_NATIVE_NUMERICS.
struct Moments {
  const Tensor &a, &b, &sum;
  double weight;

  static Moments parse_gram(const Call& call) {
    Arguments args(call, "gram_accumulate");
    const Tensor& x = args.input("x", kFloats, {-1, -1});
    return read(args, x, x);
  }
  static Moments parse_cross(const Call& call) {
    Arguments args(call, "cross_accumulate");
    const Tensor& a = args.input("a", kFloats, {-1, -1});
    return read(args, a, args.input("b", {a.dtype}, a.shape));
  }

 private:
  static Moments read(Arguments& args, const Tensor& a, const Tensor& b) {
    args.input("the sum");  // which is the output of that name
    const Tensor& sum = args.output("the sum", {DType::f32, DType::f64}, {a.dim(1), a.dim(1)});
    const Moments of{a, b, sum, args.number("weight", 1)};
    require(std::isfinite(of.weight), "weight is not finite");
    return args.done(), of;
  }
};

// Once after the last gram_accumulate: h [K,K], f64 (on CUDA f32 too), is whole. CUDA sums only its lower triangle
// until then.
struct GramFinish {
  const Tensor& h;

  static GramFinish parse(const Call& call) {
    Arguments a(call, "gram_finish");
    a.input("h");  // which is the output
    const Tensor& h = square(a.output("h"), "h", {DType::f32, DType::f64});
    return a.done(), GramFinish{h};
  }
};

// c = (c - H) * scale (1): sum (xf - xq) xqᵀ from c = sum xf xqᵀ and H = sum xq xqᵀ, both [K,K] f64 (on CUDA f32 too),
// c not H. Reads the lower triangle of h only, so it may come before gram_finish.
struct CrossDrift {
  const Tensor &h, &c;
  double scale;

  static CrossDrift parse(const Call& call) {
    Arguments a(call, "cross_drift");
    const Tensor& h = square(a.input("h"), "h", {DType::f32, DType::f64});
    a.input("c");  // which is the output
    const CrossDrift of{h, a.output("c", {h.dtype}, h.shape), a.number("scale", 1)};
    require(of.c.raw() != h.raw() || h.elements() == 0, "c must not be h");
    require(std::isfinite(of.scale), "scale is not finite");
    return a.done(), of;
  }
};

// d f64 [K] = the diagonal of h f32 or f64 [K,K].
struct Diagonal {
  const Tensor &h, &d;

  static Diagonal parse(const Call& call) {
    Arguments a(call, "diagonal");
    const Tensor& h = square(a.input("h"), "h", {DType::f32, DType::f64});
    const Diagonal of{h, a.output("d", {DType::f64}, {h.dim(0)})};
    return a.done(), of;
  }
};

// In place: lower Cholesky factor L of A f64 [K,K] (strict upper part zeroed). info I32 [1]: 0, or 1 + the failing
// column.
struct Cholesky {
  const Tensor &a, &info;

  static Cholesky parse(const Call& call) {
    Arguments args(call, "cholesky");
    args.input("a");  // which is the output
    const Tensor& a = square(args.output("a"), "a", {DType::f64});
    const Cholesky of{a, args.output("info", {DType::i32}, {1})};
    return args.done(), of;
  }
};

}  // namespace lpq::ops
