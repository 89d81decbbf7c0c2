// gptq_target: the weights that the codes should reproduce, in solving order.
//
//   in:  W [N,K] f32|f16|bf16, order I32 [K], dead U8 [K]; with alpha > 0 also the drift
//        D f64 [K,K] = sum (xf - xq) xqT (cross_drift), U f32 [K,K] (gptq_factor)
//   out: T f32 [N,K], column j = input feature order[j];  bad f64 [2] = {weights that are NaN or infinite, the first one's
//        flat index in W}
//   params: alpha
//
// Quantized predecessors change a layer's input from xf to xq. ||W Xf - Q Xq||^2 is least at Q = W C H^-1 with
// C = sum xf xqT, which equals W + W D H^-1; GPTAQ (Li et al. 2025) goes the fraction alpha of that way, since D is noisy.
// H^-1 = U^T U is the damped one. Dead channels get weight 0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/linalg/gemm.h"
#include "lpq/exec.h"
#include "lpq/half.h"

namespace lpq::gptq {
namespace {

void target(Call& call, Exec& exec) {
  const Tensor &w_in = call.input(0), &order_in = call.input(1), &dead_in = call.input(2);
  Tensor t_out = call.output(0), bad_out = call.output(1);
  require(w_in.rank() == 2 && t_out.shape == w_in.shape, "W and T must be [N,K]");
  const int64_t n = w_in.dim(0), k = w_in.dim(1);
  require(order_in.elements() == k && dead_in.elements() == k && bad_out.elements() == 2, "order and dead must be [K], bad [2]");
  const int32_t* order = order_in.data<int32_t>();
  const uint8_t* dead = dead_in.data<uint8_t>();
  float* t = t_out.data<float>();
  const std::byte* raw = w_in.raw();
  const DType dtype = w_in.dtype;
  require(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16, "W must be f32, f16 or bf16");
  std::vector<int64_t> bad(static_cast<size_t>(n), 0), first(static_cast<size_t>(n), n * k);
  exec.pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
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
  double* found = bad_out.data<double>();
  found[0] = 0;
  for (int64_t count : bad) found[0] += static_cast<double>(count);
  found[1] = static_cast<double>(*std::min_element(first.begin(), first.end()));
  const double alpha = call.params.number("alpha", 0.0);
  if (alpha == 0 || found[0] > 0) return;

  const double* drift = call.input(3).data<double>();
  const float* u = call.input(4).data<float>();
  require(call.input(3).elements() == k * k && call.input(4).elements() == k * k, "D and U must be [K,K]");
  // D in solving order, then T += alpha * ((T D) U^T) U. Doubles: U^T U is as ill-conditioned as H.
  std::vector<double> difference(static_cast<size_t>(k * k)), factor(static_cast<size_t>(k * k));
  exec.pool.parallel_for(k, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < k; ++j) {
        difference[static_cast<size_t>(i * k + j)] = drift[static_cast<int64_t>(order[i]) * k + order[j]];
        factor[static_cast<size_t>(i * k + j)] = u[i * k + j];
      }
  });
  constexpr int64_t kRows = 1024;
  std::vector<double> x(static_cast<size_t>(std::min(n, kRows) * k)), y(x.size());
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t rows = std::min(kRows, n - row);
    for (int64_t i = 0; i < rows * k; ++i) x[static_cast<size_t>(i)] = t[row * k + i];
    gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, x.data(), k, difference.data(), k, 0, y.data(), k);
    gemm_f64(exec.pool, Trans::no, Trans::yes, rows, k, k, 1, y.data(), k, factor.data(), k, 0, x.data(), k);
    gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, x.data(), k, factor.data(), k, 0, y.data(), k);
    for (int64_t i = 0; i < rows * k; ++i) t[row * k + i] += static_cast<float>(alpha * y[static_cast<size_t>(i)]);
  }
}

LPQ_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::gptq
