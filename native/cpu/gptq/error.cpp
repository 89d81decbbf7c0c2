// module_error: how far the quantized weights are from the others, in the metric H.
#include <algorithm>
#include <vector>

#include "cpu/gptq/floats.h"
#include "cpu/gptq/kernels.h"
#include "cpu/linalg/gemm.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

constexpr int64_t kRows = 1024, kColumns = 512;

// H, symmetric, as an upper triangle that has the same d H d^T: what lies above the diagonal counts twice.
std::vector<float> upper_of(Exec& exec, const double* h, int64_t k) {
  std::vector<float> metric(static_cast<size_t>(k * k));
  exec.pool.for_each(k, 16, [&](int64_t i) {
    for (int64_t j = i; j < k; ++j)
      metric[static_cast<size_t>(i * k + j)] = static_cast<float>(i == j ? h[i * k + j] : 2 * h[i * k + j]);
  });
  return metric;
}

void error(Call& call, Exec& exec) {
  const ops::ModuleError a(call);
  require_dtype(a.weight, "weight", {DType::f32});
  require_dtype(a.quantized, "quantized", {DType::f32});
  require_dtype(a.h, "H", {DType::f64});
  const int64_t n = a.weight.dim(0), k = a.weight.dim(1);
  const float *w = a.weight.data<float>(), *q = a.quantized.data<float>();
  const std::vector<float> metric = upper_of(exec, a.h.data<double>(), k);
  const int64_t chunk = std::min(n, kRows);
  const Floats difference = floats(chunk * k), product = floats(chunk * k);
  std::vector<double> of_row(static_cast<size_t>(n));
  // x[rows,K] -> the sum of x H x^T.
  const auto squared = [&](const float* x, int64_t rows) {
    for (int64_t j = 0; j < k; j += kColumns)
      gemm_f32(exec.pool, Trans::no, Trans::no, rows, std::min(kColumns, k - j), std::min(k, j + kColumns), 1, x, k,
               metric.data() + j, k, 0, product.get() + j, k);
    exec.pool.for_each(rows, 16, [&](int64_t r) {
      of_row[static_cast<size_t>(r)] = kernels().dot(x + r * k, product.get() + r * k, k);
    });
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += of_row[static_cast<size_t>(r)];
    return sum;
  };
  double sums[2] = {0, 0};
  for (int64_t row0 = 0; row0 < n; row0 += chunk) {
    const int64_t rows = std::min(chunk, n - row0);
    exec.pool.for_each(rows, 16, [&](int64_t r) {
      for (int64_t i = r * k; i < (r + 1) * k; ++i)
        difference[static_cast<size_t>(i)] = w[row0 * k + i] - q[row0 * k + i];
    });
    sums[0] += squared(difference.get(), rows);
    sums[1] += squared(w + row0 * k, rows);
  }
  a.sums.data<double>()[0] = sums[0];
  a.sums.data<double>()[1] = sums[1];
}

LPQ_OP(error, "module_error");

}  // namespace
}  // namespace lpq::gptq
