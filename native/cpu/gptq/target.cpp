// gptq_target: the weights that the codes should reproduce, in solving order. gptq_correction: what it adds to them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/linalg/gemm.h"
#include "lpq/half.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

// to [rows,K] = rows of X, times U^T U: ((X U^T) U). Doubles: U^T U is as ill-conditioned as H.
void times_inverse(Exec& exec, int64_t rows, int64_t k, double* x, const double* u, double* room, double* to) {
  gemm_f64(exec.pool, Trans::no, Trans::yes, rows, k, k, 1, x, k, u, k, 0, room, k);
  gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, room, k, u, k, 0, to, k);
}

std::vector<double> in_solving_order(Exec& exec, const double* drift, const int32_t* order, int64_t k) {
  std::vector<double> d(static_cast<size_t>(k * k));
  exec.pool.for_each(k, 16, [&](int64_t i) {
    for (int64_t j = 0; j < k; ++j)
      d[static_cast<size_t>(i * k + j)] = drift[static_cast<int64_t>(order[i]) * k + order[j]];
  });
  return d;
}

void correction(Call& call, Exec& exec) {
  const ops::GptqCorrection op(call);
  require_dtype(op.drift, "D", {DType::f64});
  const int64_t k = op.drift.dim(0);
  for (int64_t j = 0; j < k; ++j)
    require(op.order.data<int32_t>()[j] >= 0 && op.order.data<int32_t>()[j] < k,
            "order holds a column that is not there");
  std::vector<double> d = in_solving_order(exec, op.drift.data<double>(), op.order.data<int32_t>(), k);
  const std::vector<double> u(op.u.data<float>(), op.u.data<float>() + k * k);
  constexpr int64_t kRows = 1024;
  std::vector<double> room(static_cast<size_t>(std::min(k, kRows) * k));
  float* b = op.matrix.data<float>();
  for (int64_t row = 0; row < k; row += kRows) {
    const int64_t rows = std::min(kRows, k - row);
    times_inverse(exec, rows, k, d.data() + row * k, u.data(), room.data(), d.data() + row * k);
    for (int64_t i = row * k; i < (row + rows) * k; ++i) b[i] = static_cast<float>(d[static_cast<size_t>(i)]);
  }
}

void target(Call& call, Exec& exec) {
  const ops::GptqTarget of(call);
  if (of.drift) require_dtype(*of.drift, "D", {DType::f64});
  const int64_t n = of.w.dim(0), k = of.w.dim(1);
  const int32_t* order = of.order.data<int32_t>();
  const uint8_t* dead = of.dead.data<uint8_t>();
  float* t = of.t.data<float>();
  const std::byte* raw = of.w.raw();
  const DType dtype = of.w.dtype;
  std::vector<int64_t> bad(static_cast<size_t>(n), 0), first(static_cast<size_t>(n), n * k);
  exec.pool.for_each(n, 16, [&](int64_t row) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = row * k + order[j];
      float value;
      if (dtype == DType::f32) {
        std::memcpy(&value, raw + at * 4, 4);  // a mapped tensor may start at any byte
      } else {
        uint16_t half;
        std::memcpy(&half, raw + at * 2, 2);
        value = dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
      }
      if (!std::isfinite(value)) {
        ++bad[static_cast<size_t>(row)];
        first[static_cast<size_t>(row)] = std::min(first[static_cast<size_t>(row)], at);
      }
      t[row * k + j] = dead[order[j]] ? 0.0f : value;
    }
  });
  double* found = of.bad.data<double>();
  found[0] = 0;
  for (int64_t count : bad) found[0] += static_cast<double>(count);
  found[1] = static_cast<double>(*std::min_element(first.begin(), first.end()));
  if (of.alpha == 0 || found[0] > 0) return;

  const bool finished = of.matrix != nullptr;
  std::vector<double> matrix, u;
  if (finished) {
    matrix.assign(of.matrix->data<float>(), of.matrix->data<float>() + k * k);
  } else {
    matrix = in_solving_order(exec, of.drift->data<double>(), order, k);
    u.assign(of.u->data<float>(), of.u->data<float>() + k * k);
  }
  constexpr int64_t kRows = 1024;
  std::vector<double> x(static_cast<size_t>(std::min(n, kRows) * k)), y(x.size());
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t rows = std::min(kRows, n - row);
    for (int64_t i = 0; i < rows * k; ++i) x[static_cast<size_t>(i)] = t[row * k + i];
    gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, x.data(), k, matrix.data(), k, 0, y.data(), k);
    if (!finished) times_inverse(exec, rows, k, y.data(), u.data(), x.data(), y.data());
    for (int64_t i = 0; i < rows * k; ++i) t[row * k + i] += static_cast<float>(of.alpha * y[static_cast<size_t>(i)]);
  }
}

LPQ_OP(correction, "gptq_correction");
LPQ_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::gptq
