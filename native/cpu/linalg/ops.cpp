// Matrix products and factorisations.
#include <chrono>
#include <cmath>
#include <cstring>

#include "cpu/banded/form.h"
#include "cpu/checks.h"
#include "cpu/linalg/cholesky.h"
#include "cpu/linalg/gemm.h"
#include "cpu/linalg/kernels.h"
#include "cpu/nn/cast.h"
#include "ops/linalg.h"

namespace lpq {
namespace {

void linear(Call& call, Exec& exec) {
  const ops::Linear a(call);
  require_f32({{&a.x, "x"}});
  const Tensor &x = a.x, &weight = a.weight;
  require_aligned(weight, "weight");
  const int64_t m = x.dim(0), k = x.dim(1), n = a.y.dim(1);
  float* out = a.y.data<float>();
  if (a.bias) {
    std::vector<float> row(static_cast<size_t>(n));
    nn::widen(*a.bias, 0, n, row.data());
    const float* added = row.data();
    exec.pool.for_each(m, rows_grain(n), [&](int64_t t) {
      for (int64_t j = 0; j < n; ++j) out[t * n + j] = a.accumulate ? out[t * n + j] + added[j] : added[j];
    });
  }
  const float beta = a.accumulate || a.bias ? 1.0f : 0.0f;
  if (a.banded)
    banded::multiply(exec.pool, {n, k}, m, x.data<float>(), reinterpret_cast<const uint32_t*>(weight.raw()),
                     weight.dtype, beta, out, products_of(a.bf16), &exec);
  else
    gemm_weight(exec.pool, m, n, k, x.data<float>(), k, weight.raw(), weight.dtype, k, beta, out, n,
                products_of(a.bf16), &exec);
}

void band_weight(Call& call, Exec& exec) {
  const ops::BandWeight a(call);
  require_aligned(a.weight, "weight");
  banded::lay(exec.pool, {a.weight.dim(0), a.weight.dim(1)}, a.weight.data<uint16_t>(),
              reinterpret_cast<uint32_t*>(a.words.raw()));
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

void gram(Exec& exec, const ops::Moments& of, const char* name_a, const char* name_b) {
  const Tensor &a = of.a, &b = of.b, &sum = of.sum;
  require_f32({{&a, name_a}});
  require_dtype(sum, "the sum", {DType::f64});
  const int64_t rows = a.dim(0), n = a.dim(1);
  const float *pa = a.data<float>(), *pb = b.data<float>();
  require_finite(exec.pool, name_a, pa, rows, n);
  if (pb != pa) require_finite(exec.pool, name_b, pb, rows, n);
  double* c = sum.data<double>();
  gram_f64(exec.pool, rows, n, pa, pb, n, of.weight, c, products_of(of.bf16), &exec);
  // Finite inputs may still overflow f32; the diagonal of a Gram matrix bounds the rest.
  std::atomic<int64_t> overflow{n};
  exec.pool.for_each(n, pa == pb ? n : rows_grain(n), [&](int64_t i) {
    bool finite = std::isfinite(c[i * n + i]);
    if (pa != pb)
      for (int64_t j = 0; j < n; ++j) finite = finite && std::isfinite(c[i * n + j]);
    int64_t known = overflow;
    while (!finite && i < known && !overflow.compare_exchange_weak(known, i)) {
    }
  });
  if (overflow < n)
    throw Failure("LPQ_NATIVE_NUMERICS", std::string("the products of column ") + std::to_string(overflow) + " of " +
                                             name_a + " overflow f32, or the sum was not finite before");
}

void gram_accumulate(Call& call, Exec& exec) { gram(exec, ops::Moments(call, true), "x", "x"); }

void cross_accumulate(Call& call, Exec& exec) { gram(exec, ops::Moments(call, false), "a", "b"); }

void diagonal(Call& call, Exec&) {
  const ops::Diagonal op(call);
  const int64_t n = op.h.dim(0);
  for (int64_t i = 0; i < n; ++i)
    op.d.data<double>()[i] =
        op.h.dtype == DType::f32 ? static_cast<double>(op.h.data<float>()[i * n + i]) : op.h.data<double>()[i * n + i];
}

// The sums above are symmetric already.
void gram_finish(Call& call, Exec&) { require_dtype(ops::GramFinish(call).h, "h", {DType::f64}); }

// c = (c - h) * scale, of h only the lower triangle.
void cross_drift(Call& call, Exec& exec) {
  const ops::CrossDrift a(call);
  require_dtype(a.h, "h", {DType::f64});
  const int64_t n = a.h.dim(0);
  const double *sum = a.h.data<double>(), scale = a.scale;
  double* drift = a.c.data<double>();
  exec.pool.for_each(n, rows_grain(n), [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j)
      drift[i * n + j] = (drift[i * n + j] - (j <= i ? sum[i * n + j] : sum[j * n + i])) * scale;
  });
}

void cholesky(Call& call, Exec& exec) {
  const ops::Cholesky op(call);
  *op.info.data<int32_t>() = static_cast<int32_t>(cholesky_f64(exec.pool, op.a.data<double>(), op.a.dim(0)));
}

// C = alpha op(A) op(B) + beta C in f32 or f64; params alpha, beta, transA, transB; of f32 bf16: products in bf16, of
// alpha 1.
void gemm(Call& call, Exec& exec) {
  const ops::MatrixProduct of(call);
  const Tensor &a = of.a, &b = of.b, &c = of.c;
  const Trans ta = of.transpose_a ? Trans::yes : Trans::no, tb = of.transpose_b ? Trans::yes : Trans::no;
  if (a.dtype == DType::f32)
    gemm_f32(exec.pool, ta, tb, of.m, of.n, of.k, static_cast<float>(of.alpha), a.data<float>(), a.dim(1),
             b.data<float>(), b.dim(1), static_cast<float>(of.beta), c.data<float>(), of.n, products_of(of.bf16));
  else
    gemm_f64(exec.pool, ta, tb, of.m, of.n, of.k, of.alpha, a.data<double>(), a.dim(1), b.data<double>(), b.dim(1),
             of.beta, c.data<double>(), of.n);
}

// C = alpha op(A) op(A)^T + beta C, f32 or f64, of which the lower triangle is read; params alpha, beta, transA.
void syrk(Call& call, Exec& exec) {
  Arguments args(call, "syrk");
  const Tensor& a = args.input("a", {DType::f32, DType::f64}, {-1, -1});
  const Trans ta = args.flag("transA") ? Trans::yes : Trans::no;
  const double alpha = args.number("alpha", 1), beta = args.number("beta", 0);
  const int64_t n = a.dim(ta == Trans::yes), k = a.dim(ta == Trans::no);
  const Tensor& c = args.output("c", {a.dtype}, {n, n});
  args.done();
  if (a.dtype == DType::f32)
    syrk_f32(exec.pool, ta, n, k, static_cast<float>(alpha), a.data<float>(), a.dim(1), static_cast<float>(beta),
             c.data<float>(), n);
  else syrk_f64(exec.pool, ta, n, k, alpha, a.data<double>(), a.dim(1), beta, c.data<double>(), n);
}

// A lower triangular f64 matrix becomes its inverse, in place.
void triangular_inverse(Call& call, Exec& exec) {
  Arguments args(call, "triangular_inverse");
  const Tensor& l = Arguments::square(args.output("l", {DType::f64}), "l");
  args.done();
  trtri_lower_f64(exec.pool, l.data<double>(), l.dim(0));
}

// B becomes the solution of op(L) X = B (side left) or X op(L) = B (side right); params side, trans.
void triangular_solve(Call& call, Exec& exec) {
  Arguments args(call, "triangular_solve");
  const Side side = args.one_of("side", {"left", "right"}) == 0 ? Side::left : Side::right;
  const Trans trans = args.flag("trans") ? Trans::yes : Trans::no;
  const Tensor& b = args.output("b", {DType::f64}, {-1, -1});
  const int64_t n = b.dim(side == Side::right);
  const Tensor& l = args.input("l", {DType::f64}, {n, n});
  args.done();
  trsm_lower_f64(exec.pool, side, trans, b.dim(0), b.dim(1), l.data<double>(), n, b.data<double>(), b.dim(1));
}

// For bench/native: facts f64 [2] = flops done and seconds taken by fma on registers, on every thread; dtype bf16: by
// the instruction of pairs where there is one.
void fma_peak(Call& call, Exec& exec) {
  Arguments args(call, "fma_peak");
  const Tensor& facts = args.output("facts", {DType::f64}, {2});
  const auto dtype = args.one_of("dtype", {"f32", "f64", "bf16"});
  const bool single = dtype != 1;
  const int64_t rounds = args.integer("rounds");
  args.done();
  const auto& f32 = dtype == 2 ? linalg::bf16_kernels() : linalg::kernels<float>();
  const auto& f64 = linalg::kernels<double>();
  std::atomic<bool> odd{false};
  const auto start = std::chrono::steady_clock::now();
  exec.pool.for_each(4 * exec.pool.size(), 1, [&](int64_t) {
    if (single ? f32.spin(rounds, 0.5f) < 0 : f64.spin(rounds, 0.5) < 0) odd = true;
  });
  facts.data<double>()[1] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t pair = dtype == 2 && f32.depth(2) == 1 ? 2 : 1;
  const int64_t per_round = single ? pair * f32.mr * f32.nr : f64.mr * f64.nr;
  facts.data<double>()[0] = odd ? 0 : 8.0 * exec.pool.size() * static_cast<double>(rounds * per_round);
}

}  // namespace
LPQ_OP(gemm, "gemm");
LPQ_OP(syrk, "syrk");
LPQ_OP(triangular_inverse, "triangular_inverse");
LPQ_OP(triangular_solve, "triangular_solve");
LPQ_OP(fma_peak, "fma_peak");
LPQ_OP(linear, "linear");
LPQ_OP(band_weight, "band_weight");
LPQ_OP(gram_accumulate, "gram_accumulate");
LPQ_OP(cross_accumulate, "cross_accumulate");
LPQ_OP(cross_drift, "cross_drift");
LPQ_OP(gram_finish, "gram_finish");
LPQ_OP(diagonal, "diagonal");
LPQ_OP(cholesky, "cholesky");
}  // namespace lpq
