// linear, head_linear, band_weight, gemm, second moments (gram_accumulate, cross_accumulate, gram_finish, cross_drift,
// diagonal) and cholesky.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// words [ceil(N/32), ceil(K/2), 64] of W f16 or bf16 [N,K]: as linear on the CPU reads a weight fastest
// (cpu/banded/form.h).
struct BandWeight : Arguments {
  const Tensor& weight = input("weight", {f16, bf16}, {-1, -1});
  const Tensor& words = output("words", {weight.dtype}, {(weight.dim(0) + 31) / 32, (weight.dim(1) + 1) / 2, 64});

  explicit BandWeight(const Call& call) : Arguments(call, "band_weight") { done(); }
};

// y = x Wᵀ + bias (accumulate: added to y); x f32 (on CUDA f16 or bf16 too) [T,K], W f32, f16 or bf16 [N,K] or, on the
// CPU, what band_weight makes of it, bias likewise [N] (optional), y f32 (on CUDA also x's dtype) [T,N], not x. fp32:
// on the CPU a chain of fma for every 512 k from 0, then added in order to (y +) bias; bf16: of x and W rounded to bf16
// (on CUDA where x is f32).
struct Linear : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& weight = input("weight", kFloats);
  bool banded = weight.rank() == 3;
  const Tensor& y = output("y", {f32, x.dtype}, {x.dim(0), banded ? -1 : dim_of(weight)});
  const Tensor* bias = last_input("bias", kFloats, {y.dim(1)});
  bool accumulate = flag("accumulate"), bf16 = flag("bf16");

  explicit Linear(const Call& call) : Arguments(call, "linear") {
    const int64_t n = y.dim(1), k = x.dim(1);
    if (banded) {
      require_shape(weight, "weight", {(n + 31) / 32, (k + 1) / 2, 64});
      require_dtype(weight, "weight", {f16, DType::bf16});
    } else {
      require_shape(weight, "weight", {-1, k});
    }
    require(y.raw() != x.raw() || y.elements() == 0, "y must not be x");
    done();
  }

 private:
  // Of no matrix: none; the shape is refused behind the other arguments.
  static int64_t dim_of(const Tensor& weight) { return weight.rank() == 2 ? weight.dim(0) : -1; }
};

// A product of every head's own: y[t][h][to + n] = sum over k < K of x[t][h][from + k] W_h[n][k], n < N, the rest of y
// left as it is. x f32 [T, heads*fromDim], y f32, f16 or bf16 [T, heads*toDim], not x. weight f32, f16 or bf16
// [heads*rows, C]: W_h is its rows h*rows + first .., [N, C] with K <= C, or turned: [K, C] with N <= C, W_h[n][k] in
// row k. Sums in fp32.
struct HeadLinear : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& weight = input("weight", kFloats, {-1, -1});
  const Tensor& y = output("y", kFloats, {x.dim(0), -1});
  int64_t heads = integer("heads"), n = integer("n"), k = integer("k"), first = integer("first");
  int64_t from_dim = integer("fromDim"), from = integer("from"), to_dim = integer("toDim"), to = integer("to");
  bool turned = flag("turned");
  int64_t rows = 0;  // of a head in weight

  explicit HeadLinear(const Call& call) : Arguments(call, "head_linear") {
    require(heads > 0 && n >= 0 && k >= 0,
            "heads is " + std::to_string(heads) + ", n " + std::to_string(n) + " and k " + std::to_string(k));
    for (const auto& [begin, width, dim] : {std::tuple{from, k, from_dim}, {to, n, to_dim}})
      require(begin >= 0 && begin + width <= dim, "columns " + std::to_string(begin) + " to " +
                                                      std::to_string(begin + width) + " are not in a head of " +
                                                      std::to_string(dim));
    require_shape(x, "x", {-1, heads * from_dim});
    require_shape(y, "y", {x.dim(0), heads * to_dim});
    require(weight.dim(0) % heads == 0, "the rows of weight are no multiple of heads");
    rows = weight.dim(0) / heads;
    require(first >= 0 && first + (turned ? k : n) <= rows && (turned ? n : k) <= weight.dim(1),
            "a head's part of weight has " + std::to_string(rows) + " rows of " + std::to_string(weight.dim(1)));
    require(y.raw() != x.raw() || y.elements() == 0, "y must not be x");
    done();
  }
};

// gemm: c = alpha (1) op(a) op(b) + beta (0) c, a and b f32 or f64, c [M,N] of their dtype and neither; transA,
// transB: they are stored turned over. bf16: of f32 ones rounded to bf16, with an alpha of 1.
struct MatrixProduct : Arguments {
  const Tensor& a = input("a", {f32, f64}, {-1, -1});
  const Tensor& b = input("b", {a.dtype}, {-1, -1});
  const Tensor& c = output("c", {a.dtype}, {-1, -1});
  bool transpose_a = flag("transA"), transpose_b = flag("transB"), bf16 = flag("bf16");
  double alpha = number("alpha", 1), beta = number("beta", 0);
  int64_t m = a.dim(transpose_a ? 1 : 0), k = a.dim(transpose_a ? 0 : 1), n = c.dim(1);

  explicit MatrixProduct(const Call& call) : Arguments(call, "gemm") {
    require(!bf16 || (a.dtype == f32 && alpha == 1), "products in bf16 take f32, with an alpha of 1");
    require_shape(c, "c", {m, n});
    require_shape(b, "b", transpose_b ? Dims{n, k} : Dims{k, n});
    done();
  }
};

// H += weight (1) * xᵀx for x f32 [T,K] into the symmetric H f64 [K,K]; or C += weight * aᵀb for a, b f32 [T,K]. On
// CUDA x, a and b f32, f16 or bf16, sums f32 or f64. Products accumulate in fp32 over at most 512 rows, then in f64
// (CUDA: 16-bit x over all rows of the call, then in H's dtype; only the lower triangle of H, gram_finish). NaN and
// infinity: LPQ_NATIVE_NUMERICS. bf16: as of linear.
struct Moments : Arguments {
  bool gram;
  const Tensor& a = input(gram ? "x" : "a", kFloats, {-1, -1});
  const Tensor& b = gram ? a : input("b", {a.dtype}, a.shape);
  const Tensor& sum = in_place("the sum", {f32, f64}, {a.dim(1), a.dim(1)});
  double weight = number("weight", 1);
  bool bf16 = flag("bf16");

  Moments(const Call& call, bool of_one)
      : Arguments(call, of_one ? "gram_accumulate" : "cross_accumulate"), gram(of_one) {
    require(std::isfinite(weight), "weight is not finite");
    done();
  }
};

// Once after the last gram_accumulate: h [K,K], f64 (on CUDA f32 too), is whole. CUDA sums only its lower triangle
// until then.
struct GramFinish : Arguments {
  const Tensor& h = square(in_place("h", {f32, f64}), "h");

  explicit GramFinish(const Call& call) : Arguments(call, "gram_finish") { done(); }
};

// c = (c - H) * scale (1): sum (xf - xq) xqᵀ from c = sum xf xqᵀ and H = sum xq xqᵀ, both [K,K] f64 (on CUDA f32 too),
// c not H. Reads the lower triangle of h only, so it may come before gram_finish.
struct CrossDrift : Arguments {
  const Tensor& h = square(input("h", {f32, f64}), "h");
  const Tensor& c = in_place("c", {h.dtype}, h.shape);
  double scale = number("scale", 1);

  explicit CrossDrift(const Call& call) : Arguments(call, "cross_drift") {
    require(c.raw() != h.raw() || h.elements() == 0, "c must not be h");
    require(std::isfinite(scale), "scale is not finite");
    done();
  }
};

// d f64 [K] = the diagonal of h f32 or f64 [K,K].
struct Diagonal : Arguments {
  const Tensor& h = square(input("h", {f32, f64}), "h");
  const Tensor& d = output("d", {f64}, {h.dim(0)});

  explicit Diagonal(const Call& call) : Arguments(call, "diagonal") { done(); }
};

// In place: lower Cholesky factor L of A f64 [K,K] (strict upper part zeroed). info I32 [1]: 0, or 1 + the failing
// column.
struct Cholesky : Arguments {
  const Tensor& a = square(in_place("a", {f64}), "a");
  const Tensor& info = output("info", {i32}, {1});

  explicit Cholesky(const Call& call) : Arguments(call, "cholesky") { done(); }
};

}  // namespace lpq::ops
