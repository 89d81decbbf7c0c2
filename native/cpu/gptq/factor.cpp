// gptq_factor: the Hessian in solving order and the factor that propagates rounding errors.
//
// GPTQ needs the upper Cholesky factor of H^-1. Factoring H itself from the far end, H = R R^T with R upper, gives H^-1
// = R^-T R^-1, so U = R^-1: one Cholesky and one triangular inverse, no explicit H^-1 and half the work (spec: reverse
// factorisation). Flipping rows and columns turns R into an ordinary lower factor.
#include <cmath>
#include <vector>

#include "cpu/linalg/cholesky.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

void factor(Call& call, Exec& exec) {
  const ops::GptqFactor of(call);
  require_dtype(of.h, "H", {DType::f64});
  const int64_t k = of.h.dim(0);
  const double* h = of.h.data<double>();
  const int32_t* order = of.order.data<int32_t>();
  float *u = of.u.data<float>(), *m = of.m.data<float>();
  uint8_t* dead = of.dead.data<uint8_t>();
  double* info = of.info.data<double>();

  std::vector<uint8_t> seen(static_cast<size_t>(k), 0);
  for (int64_t j = 0; j < k; ++j) {
    require(order[j] >= 0 && order[j] < k && !seen[static_cast<size_t>(order[j])], "order is not a permutation");
    seen[static_cast<size_t>(order[j])] = 1;
  }
  double mean = 0, largest = 0;
  for (int64_t j = 0; j < k; ++j) {
    const double d = h[j * k + j];
    if (!std::isfinite(d))
      throw Failure("LPQ_NATIVE_NUMERICS", "the Hessian holds NaN or infinity in column " + std::to_string(j));
    dead[j] = d == 0.0;
    mean += d;
    largest = d > largest ? d : largest;
  }
  mean /= static_cast<double>(k);
  if (mean == 0) mean = 1;  // every channel is dead: any positive diagonal serves

  // Damping that is too small for the factorisation grows by a half decade a time; past 1 the diagonal itself gets a
  // floor.
  double fraction = of.damp;
  std::vector<double> a(static_cast<size_t>(k * k));
  int attempts = 0;
  double floored = 0;
  double floor_value = 0;
  for (;; fraction *= 3.1622776601683795) {
    ++attempts;
    if (fraction > 1.0 && attempts > 1) floor_value = 0.01 * largest;
    if (attempts > 12)
      throw Failure("LPQ_NATIVE_NUMERICS",
                    "the Hessian cannot be factored even with damping " + std::to_string(fraction));
    floored = 0;
    for (int64_t j = 0; j < k; ++j) floored += dead[j] == 0 && h[j * k + j] < floor_value;
    const auto entry = [&](int64_t row, int64_t column) {
      if (row != column) return h[row * k + column];
      if (dead[row]) return mean;
      const double d = h[row * k + row];
      return (d < floor_value ? floor_value : d) + fraction * mean;
    };
    exec.pool.for_each(k, 16, [&](int64_t i) {
      const int64_t row = order[k - 1 - i];
      for (int64_t j = 0; j < k; ++j) a[static_cast<size_t>(i * k + j)] = entry(row, order[k - 1 - j]);
      for (int64_t j = 0; j < k; ++j) m[i * k + j] = static_cast<float>(entry(order[i], order[j]));
    });
    if (cholesky_f64(exec.pool, a.data(), k) == 0) break;
  }
  trtri_lower_f64(exec.pool, a.data(), k);
  exec.pool.for_each(k, 16, [&](int64_t i) {
    for (int64_t j = 0; j < k; ++j)
      u[i * k + j] = j < i ? 0.0f : static_cast<float>(a[static_cast<size_t>((k - 1 - i) * k + (k - 1 - j))]);
  });
  info[0] = fraction;
  info[1] = attempts;
  info[2] = floored;
}

LPQ_OP(factor, "gptq_factor");

}  // namespace
}  // namespace lpq::gptq
