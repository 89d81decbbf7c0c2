// gptq_target: the weights that the codes should reproduce, in solving order. gptq_correction: what it adds to them.
//
//   in:  W [N,K] f32|f16|bf16, order I32 [K], dead U8 [K]; with alpha > 0 also the drift
//        D f64 [K,K] = sum (xf - xq) xqT (cross_drift) and U f32 [K,K] (gptq_factor), or B f32 [K,K] instead of both
//   out: T f32 [N,K], column j = input feature order[j];  bad f64 [2] = {weights that are NaN or infinite, the first
//   one's
//        flat index in W}
//   params: alpha
//
// gptq_correction
//   in:  D f64 [K,K], order I32 [K], U f32 [K,K]
//   out: B f32 [K,K] = P D P^T U^T U, solving order: pays for itself when the linears of a feed have more than K rows
//
// Quantized predecessors change a layer's input from xf to xq. ||W Xf - Q Xq||^2 is least at Q = W C H^-1 with C = sum
// xf xqT, which equals W + W D H^-1; GPTAQ (Li et al. 2025) goes the fraction alpha of that way, since D is noisy. H^-1
// = U^T U is the damped one. Dead channels get weight 0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/linalg/gemm.h"
#include "lpq/exec.h"
#include "lpq/half.h"

namespace lpq::gptq {
namespace {

// to [rows,K] = rows of X, times U^T U: ((X U^T) U). Doubles: U^T U is as ill-conditioned as H.
void times_inverse(Exec& exec, int64_t rows, int64_t k, double* x, const double* u, double* room, double* to) {
  gemm_f64(exec.pool, Trans::no, Trans::yes, rows, k, k, 1, x, k, u, k, 0, room, k);
  gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, room, k, u, k, 0, to, k);
}

std::vector<double> in_solving_order(Exec& exec, const double* drift, const int32_t* order, int64_t k) {
  std::vector<double> d(static_cast<size_t>(k * k));
  exec.pool.parallel_for(k, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < k; ++j)
        d[static_cast<size_t>(i * k + j)] = drift[static_cast<int64_t>(order[i]) * k + order[j]];
  });
  return d;
}

void correction(Call& call, Exec& exec) {
  const Tensor &drift = call.input(0), &order = call.input(1), &u_in = call.input(2);
  Tensor out = call.output(0);
  require(drift.rank() == 2 && drift.dim(0) == drift.dim(1), "D must be square");
  const int64_t k = drift.dim(0);
  require(order.elements() == k && u_in.elements() == k * k && out.elements() == k * k,
          "gptq_correction: shapes disagree with K");
  for (int64_t j = 0; j < k; ++j)
    require(order.data<int32_t>()[j] >= 0 && order.data<int32_t>()[j] < k, "order holds a column that is not there");
  std::vector<double> d = in_solving_order(exec, drift.data<double>(), order.data<int32_t>(), k);
  const std::vector<double> u(u_in.data<float>(), u_in.data<float>() + k * k);
  constexpr int64_t kRows = 1024;
  std::vector<double> room(static_cast<size_t>(std::min(k, kRows) * k));
  float* b = out.data<float>();
  for (int64_t row = 0; row < k; row += kRows) {
    const int64_t rows = std::min(kRows, k - row);
    times_inverse(exec, rows, k, d.data() + row * k, u.data(), room.data(), d.data() + row * k);
    for (int64_t i = row * k; i < (row + rows) * k; ++i) b[i] = static_cast<float>(d[static_cast<size_t>(i)]);
  }
}

void target(Call& call, Exec& exec) {
  const Tensor &w_in = call.input(0), &order_in = call.input(1), &dead_in = call.input(2);
  Tensor t_out = call.output(0), bad_out = call.output(1);
  require(w_in.rank() == 2 && t_out.shape == w_in.shape, "W and T must be [N,K]");
  const int64_t n = w_in.dim(0), k = w_in.dim(1);
  require(order_in.elements() == k && dead_in.elements() == k && bad_out.elements() == 2,
          "order and dead must be [K], bad [2]");
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

  const bool finished = call.in.size() == 4;
  require(call.input(3).elements() == k * k && (finished || call.input(4).elements() == k * k),
          finished ? "the correction must be [K,K]" : "D and U must be [K,K]");
  std::vector<double> matrix, u;
  if (finished) {
    matrix.assign(call.input(3).data<float>(), call.input(3).data<float>() + k * k);
  } else {
    matrix = in_solving_order(exec, call.input(3).data<double>(), order, k);
    u.assign(call.input(4).data<float>(), call.input(4).data<float>() + k * k);
  }
  constexpr int64_t kRows = 1024;
  std::vector<double> x(static_cast<size_t>(std::min(n, kRows) * k)), y(x.size());
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t rows = std::min(kRows, n - row);
    for (int64_t i = 0; i < rows * k; ++i) x[static_cast<size_t>(i)] = t[row * k + i];
    gemm_f64(exec.pool, Trans::no, Trans::no, rows, k, k, 1, x.data(), k, matrix.data(), k, 0, y.data(), k);
    if (!finished) times_inverse(exec, rows, k, y.data(), u.data(), x.data(), y.data());
    for (int64_t i = 0; i < rows * k; ++i) t[row * k + i] += static_cast<float>(alpha * y[static_cast<size_t>(i)]);
  }
}

LPQ_OP(correction, "gptq_correction");
LPQ_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::gptq
