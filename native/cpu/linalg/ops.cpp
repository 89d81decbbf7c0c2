// The operations of native/ops.ts that are matrix products and factorisations.
#include <chrono>
#include <cmath>
#include <cstring>

#include "cpu/checks.h"
#include "cpu/linalg/cholesky.h"
#include "cpu/linalg/gemm.h"
#include "cpu/linalg/kernels.h"
#include "cpu/nn/cast.h"

namespace lpq {
namespace {

void linear(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &weight = call.input(1), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t m = x.dim(0), k = x.dim(1);
  require_dtype(weight, "weight", {DType::f32, DType::f16, DType::bf16});
  require_shape(weight, "weight", {-1, k});
  require_aligned(weight, "weight");
  const int64_t n = weight.dim(0);
  require_tensor(y, "y", DType::f32, {m, n});
  require(y.raw() != x.raw() || y.elements() == 0, "y must not be x");
  const bool accumulate = call.params.number("accumulate", 0) != 0;
  float* out = y.data<float>();
  if (call.in.size() > 2) {
    const Tensor& bias = call.input(2);
    require_dtype(bias, "bias", {DType::f32, DType::f16, DType::bf16});
    require_shape(bias, "bias", {n});
    std::vector<float> row(static_cast<size_t>(n));
    nn::widen(bias, 0, n, row.data());
    const float* added = row.data();
    exec.pool.parallel_for(m, rows_grain(n), [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t j = 0; j < n; ++j) out[t * n + j] = accumulate ? out[t * n + j] + added[j] : added[j];
    });
  }
  const float beta = accumulate || call.in.size() > 2 ? 1.0f : 0.0f;
  gemm_weight(exec.pool, m, n, k, x.data<float>(), k, weight.raw(), weight.dtype, k, beta, out, n, &exec);
}

// Throws LPQ_NATIVE_NUMERICS naming the first row and column of x [rows, n] that is NaN or infinite.
void require_finite(ThreadPool& pool, const char* name, const float* x, int64_t rows, int64_t n) {
  std::atomic<int64_t> first{rows * n};
  pool.parallel_for(rows, rows_grain(n / 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t most = 0;  // the largest exponent field: all ones means NaN or infinity
      for (int64_t j = 0; j < n; ++j) {
        uint32_t bits;
        std::memcpy(&bits, x + i * n + j, 4);
        bits &= 0x7f800000u;
        most = bits > most ? bits : most;
      }
      if (most != 0x7f800000u) continue;
      int64_t at = i * n;
      while (std::isfinite(x[at])) ++at;
      int64_t known = first;
      while (at < known && !first.compare_exchange_weak(known, at)) {
      }
      return;
    }
  });
  if (first < rows * n)
    throw Failure("LPQ_NATIVE_NUMERICS", std::string(name) + " holds " + (std::isnan(x[first]) ? "NaN" : "infinity") +
                                             " at row " + std::to_string(first / n) + ", column " +
                                             std::to_string(first % n));
}

void gram(Call& call, Exec& exec, const char* name_a, const Tensor& a, const char* name_b, const Tensor& b,
          const Tensor& sum) {
  require_tensor(a, name_a, DType::f32, {-1, -1});
  require_tensor(b, name_b, DType::f32, a.shape);
  const int64_t rows = a.dim(0), n = a.dim(1);
  require_tensor(sum, "the sum", DType::f64, {n, n});
  const double weight = call.params.number("weight", 1.0);
  require(std::isfinite(weight), "weight is not finite");
  const float *pa = a.data<float>(), *pb = b.data<float>();
  require_finite(exec.pool, name_a, pa, rows, n);
  if (pb != pa) require_finite(exec.pool, name_b, pb, rows, n);
  double* c = sum.data<double>();
  gram_f64(exec.pool, rows, n, pa, pb, n, weight, c, &exec);
  // Finite inputs may still overflow f32; the diagonal of a Gram matrix bounds the rest.
  std::atomic<int64_t> overflow{n};
  exec.pool.parallel_for(n, pa == pb ? n : rows_grain(n), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      bool finite = std::isfinite(c[i * n + i]);
      if (pa != pb)
        for (int64_t j = 0; j < n; ++j) finite = finite && std::isfinite(c[i * n + j]);
      int64_t known = overflow;
      while (!finite && i < known && !overflow.compare_exchange_weak(known, i)) {
      }
    }
  });
  if (overflow < n)
    throw Failure("LPQ_NATIVE_NUMERICS", std::string("the products of column ") + std::to_string(overflow) + " of " +
                                             name_a + " overflow f32, or the sum was not finite before");
}

void gram_accumulate(Call& call, Exec& exec) {
  gram(call, exec, "x", call.input(0), "x", call.input(0), call.output(0));
}

void cross_accumulate(Call& call, Exec& exec) {
  gram(call, exec, "a", call.input(0), "b", call.input(1), call.output(0));
}

void diagonal(Call& call, Exec&) {
  const Tensor &h = call.input(0), &d = call.output(0);
  require_dtype(h, "h", {DType::f32, DType::f64});
  require_shape(h, "h", {h.dim(0), h.dim(0)});
  const int64_t n = h.dim(0);
  require_tensor(d, "d", DType::f64, {n});
  for (int64_t i = 0; i < n; ++i)
    d.data<double>()[i] =
        h.dtype == DType::f32 ? static_cast<double>(h.data<float>()[i * n + i]) : h.data<double>()[i * n + i];
}

// The sums above are symmetric already.
void gram_finish(Call& call, Exec&) {
  const Tensor& h = call.output(0);
  require_tensor(h, "h", DType::f64, {-1, -1});
  require_shape(h, "h", {h.dim(0), h.dim(0)});
}

// c = (c - h) * scale, of h only the lower triangle.
void cross_drift(Call& call, Exec& exec) {
  const Tensor &h = call.input(0), &c = call.output(0);
  require_tensor(h, "h", DType::f64, {-1, -1});
  const int64_t n = h.dim(0);
  require_shape(h, "h", {n, n});
  require_tensor(c, "c", DType::f64, {n, n});
  require(c.raw() != h.raw() || n == 0, "c must not be h");
  const double scale = call.params.number("scale", 1.0);
  require(std::isfinite(scale), "scale is not finite");
  const double* sum = h.data<double>();
  double* drift = c.data<double>();
  exec.pool.parallel_for(n, rows_grain(n), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j)
        drift[i * n + j] = (drift[i * n + j] - (j <= i ? sum[i * n + j] : sum[j * n + i])) * scale;
  });
}

void cholesky(Call& call, Exec& exec) {
  const Tensor &a = call.output(0), &info = call.output(1);
  require_tensor(a, "a", DType::f64, {-1, -1});
  require_shape(a, "a", {a.dim(0), a.dim(0)});
  require_tensor(info, "info", DType::i32, {1});
  *info.data<int32_t>() = static_cast<int32_t>(cholesky_f64(exec.pool, a.data<double>(), a.dim(0)));
}

// C = alpha op(A) op(B) + beta C in f32 or f64; params alpha, beta, transA, transB. For tests and small tools.
void gemm(Call& call, Exec& exec) {
  const Tensor &a = call.input(0), &b = call.input(1), &c = call.output(0);
  require_dtype(a, "a", {DType::f32, DType::f64});
  require_shape(a, "a", {-1, -1});
  require_tensor(c, "c", a.dtype, {-1, -1});
  const Trans ta = call.params.number("transA", 0) != 0 ? Trans::yes : Trans::no;
  const Trans tb = call.params.number("transB", 0) != 0 ? Trans::yes : Trans::no;
  const double alpha = call.params.number("alpha", 1), beta = call.params.number("beta", 0);
  const int64_t m = a.dim(ta == Trans::yes), k = a.dim(ta == Trans::no), n = c.dim(1);
  require_shape(c, "c", {m, n});
  require_tensor(b, "b", a.dtype, tb == Trans::yes ? std::vector<int64_t>{n, k} : std::vector<int64_t>{k, n});
  if (a.dtype == DType::f32)
    gemm_f32(exec.pool, ta, tb, m, n, k, static_cast<float>(alpha), a.data<float>(), a.dim(1), b.data<float>(),
             b.dim(1), static_cast<float>(beta), c.data<float>(), n);
  else
    gemm_f64(exec.pool, ta, tb, m, n, k, alpha, a.data<double>(), a.dim(1), b.data<double>(), b.dim(1), beta,
             c.data<double>(), n);
}

// C = alpha op(A) op(A)^T + beta C, f32 or f64, of which the lower triangle is read; params alpha, beta, transA.
void syrk(Call& call, Exec& exec) {
  const Tensor &a = call.input(0), &c = call.output(0);
  require_dtype(a, "a", {DType::f32, DType::f64});
  require_shape(a, "a", {-1, -1});
  const Trans ta = call.params.number("transA", 0) != 0 ? Trans::yes : Trans::no;
  const double alpha = call.params.number("alpha", 1), beta = call.params.number("beta", 0);
  const int64_t n = a.dim(ta == Trans::yes), k = a.dim(ta == Trans::no);
  require_tensor(c, "c", a.dtype, {n, n});
  if (a.dtype == DType::f32)
    syrk_f32(exec.pool, ta, n, k, static_cast<float>(alpha), a.data<float>(), a.dim(1), static_cast<float>(beta),
             c.data<float>(), n);
  else syrk_f64(exec.pool, ta, n, k, alpha, a.data<double>(), a.dim(1), beta, c.data<double>(), n);
}

// A lower triangular f64 matrix becomes its inverse, in place.
void triangular_inverse(Call& call, Exec& exec) {
  const Tensor& l = call.output(0);
  require_tensor(l, "l", DType::f64, {-1, -1});
  require_shape(l, "l", {l.dim(0), l.dim(0)});
  trtri_lower_f64(exec.pool, l.data<double>(), l.dim(0));
}

// B becomes the solution of op(L) X = B (side left) or X op(L) = B (side right); params side, trans.
void triangular_solve(Call& call, Exec& exec) {
  const Tensor &l = call.input(0), &b = call.output(0);
  const std::string& side = call.params.text("side");
  require(side == "left" || side == "right", "side is '" + side + "', not left or right");
  require_tensor(b, "b", DType::f64, {-1, -1});
  const int64_t n = b.dim(side == "right");
  require_tensor(l, "l", DType::f64, {n, n});
  trsm_lower_f64(exec.pool, side == "left" ? Side::left : Side::right,
                 call.params.number("trans", 0) != 0 ? Trans::yes : Trans::no, b.dim(0), b.dim(1), l.data<double>(), n,
                 b.data<double>(), b.dim(1));
}

// For bench/native: facts f64 [2] = flops done and seconds taken by fma on registers, on every thread.
void fma_peak(Call& call, Exec& exec) {
  const Tensor& facts = call.output(0);
  require_tensor(facts, "facts", DType::f64, {2});
  const std::string& dtype = call.params.text("dtype");
  require(dtype == "f32" || dtype == "f64", "dtype is '" + dtype + "', not f32 or f64");
  const bool single = dtype == "f32";
  const auto& f32 = linalg::kernels<float>();
  const auto& f64 = linalg::kernels<double>();
  const int64_t rounds = call.params.integer("rounds");
  std::atomic<bool> odd{false};
  const auto start = std::chrono::steady_clock::now();
  exec.pool.parallel_for(4 * exec.pool.size(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      if (single ? f32.spin(rounds, 0.5f) < 0 : f64.spin(rounds, 0.5) < 0) odd = true;
  });
  facts.data<double>()[1] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t per_round = single ? f32.mr * f32.nr : f64.mr * f64.nr;
  facts.data<double>()[0] = odd ? 0 : 8.0 * exec.pool.size() * static_cast<double>(rounds * per_round);
}

}  // namespace
LPQ_OP(gemm, "gemm");
LPQ_OP(syrk, "syrk");
LPQ_OP(triangular_inverse, "triangular_inverse");
LPQ_OP(triangular_solve, "triangular_solve");
LPQ_OP(fma_peak, "fma_peak");
LPQ_OP(linear, "linear");
LPQ_OP(gram_accumulate, "gram_accumulate");
LPQ_OP(cross_accumulate, "cross_accumulate");
LPQ_OP(cross_drift, "cross_drift");
LPQ_OP(gram_finish, "gram_finish");
LPQ_OP(diagonal, "diagonal");
LPQ_OP(cholesky, "cholesky");
}  // namespace lpq
