// gptq_target: the weights that the codes should reproduce, in solving order. gptq_correction: what it adds to them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/gptq/floats.h"
#include "cpu/linalg/gemm.h"
#include "lpq/half.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

constexpr int64_t kRows = 1024;   // of X at a time
constexpr int64_t kBlock = 1024;  // columns of U, whose zeros are left out block by block

// to [rows,K] = rows of X, times U^T U: ((X U^T) U), U upper; `to` may be x. fp32 is enough, however ill-conditioned H
// is. Let e be the error of a product relative to |X||U|, about sqrt(K) 2^-24. The first product's reaches the result
// as d U, |d| <= e |X||U|, which counts (d U) H (d U)^T = |d|^2, while the result itself counts X H^-1 X^T >= |X|^2 /
// |H|: a share of e sqrt(cond H). The second's has the same bound, and so has that of X, the product of T and D.
// Damping of 0.01 keeps cond H below 100 K, so for K = 8192 each is at most 5e-6 times 900, of the correction.
void times_inverse(Exec& exec, int64_t rows, int64_t k, const float* x, const float* u, float* room, float* to) {
  for (int64_t j = 0; j < k; j += kBlock)
    gemm_f32(exec.pool, Trans::no, Trans::yes, rows, std::min(kBlock, k - j), k - j, 1, x + j, k, u + j * k + j, k, 0,
             room + j, k);
  for (int64_t j = 0; j < k; j += kBlock) {
    const int64_t width = std::min(kBlock, k - j);
    gemm_f32(exec.pool, Trans::no, Trans::no, rows, width, j + width, 1, room, k, u + j, k, 0, to + j, k);
  }
}

Floats in_solving_order(Exec& exec, const double* drift, const int32_t* order, int64_t k) {
  Floats d = floats(k * k);
  exec.pool.for_each(k, 16, [&](int64_t i) {
    for (int64_t j = 0; j < k; ++j)
      d[static_cast<size_t>(i * k + j)] = static_cast<float>(drift[static_cast<int64_t>(order[i]) * k + order[j]]);
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
  const Floats d = in_solving_order(exec, op.drift.data<double>(), op.order.data<int32_t>(), k);
  const Floats room = floats(std::min(k, kRows) * k);
  for (int64_t row = 0; row < k; row += kRows)
    times_inverse(exec, std::min(kRows, k - row), k, d.get() + row * k, op.u.data<float>(), room.get(),
                  op.matrix.data<float>() + row * k);
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

  const Floats drift = of.drift ? in_solving_order(exec, of.drift->data<double>(), order, k) : Floats();
  const float* matrix = drift ? drift.get() : of.matrix->data<float>();
  const Floats added = floats(std::min(n, kRows) * k), room = drift ? floats(std::min(n, kRows) * k) : Floats();
  for (int64_t row = 0; row < n; row += kRows) {
    const int64_t rows = std::min(kRows, n - row);
    float* own = t + row * k;
    gemm_f32(exec.pool, Trans::no, Trans::no, rows, k, k, 1, own, k, matrix, k, 0, added.get(), k);
    if (drift) times_inverse(exec, rows, k, added.get(), of.u->data<float>(), room.get(), added.get());
    exec.pool.for_each(rows, 16, [&](int64_t r) {
      for (int64_t i = r * k; i < (r + 1) * k; ++i)
        own[i] += static_cast<float>(of.alpha * static_cast<double>(added[static_cast<size_t>(i)]));
    });
  }
}

LPQ_OP(correction, "gptq_correction");
LPQ_OP(target, "gptq_target");

}  // namespace
}  // namespace lpq::gptq
