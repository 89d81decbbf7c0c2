// head_linear: a product of every head's own.
#include <vector>

#include "cpu/checks.h"
#include "cpu/linalg/gemm.h"
#include "cpu/nn/cast.h"
#include "ops/linalg.h"

namespace lpq {
namespace {

void head_linear(Call& call, Exec& exec) {
  const ops::HeadLinear a(call);
  require_aligned(a.weight, "weight");
  const int64_t tokens = a.x.dim(0), columns = a.weight.dim(1), x_row = a.heads * a.from_dim,
                y_row = a.heads * a.to_dim;
  if (tokens == 0 || a.n == 0) return;
  const bool wide = a.y.dtype == DType::f32;
  std::vector<float> part(a.turned ? static_cast<size_t>(a.k * a.n) : 0),
      made(wide ? 0 : static_cast<size_t>(tokens * a.n));
  for (int64_t h = 0; h < a.heads; ++h) {
    const float* const x = a.x.data<float>() + h * a.from_dim + a.from;
    float* const to = wide ? a.y.data<float>() + h * a.to_dim + a.to : made.data();
    const int64_t stride = wide ? y_row : a.n, row = h * a.rows + a.first;
    if (a.turned) {
      exec.pool.for_each(a.k, rows_grain(a.n),
                         [&](int64_t k) { nn::widen(a.weight, (row + k) * columns, a.n, part.data() + k * a.n); });
      gemm_f32(exec.pool, Trans::no, Trans::no, tokens, a.n, a.k, 1, x, x_row, part.data(), a.n, 0, to, stride);
    } else {
      const std::byte* const rows = a.weight.raw() + static_cast<size_t>(row * columns) * dtype_bytes(a.weight.dtype);
      gemm_weight(exec.pool, tokens, a.n, a.k, x, x_row, rows, a.weight.dtype, columns, 0, to, stride);
    }
    if (!wide)
      for (int64_t t = 0; t < tokens; ++t) nn::narrow(made.data() + t * a.n, a.y, t * y_row + h * a.to_dim + a.to, a.n);
  }
}
LPQ_OP(head_linear, "head_linear");

}  // namespace
}  // namespace lpq
