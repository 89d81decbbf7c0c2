// gemm_w4ax: integer products of activation and weight codes, rescaled block by block. Contract: native/ops.ts.
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"

namespace lpq::w4ax {
namespace {

// Tokens that one pass over the weights serves.
constexpr int64_t kTokens = 32;

void widen(const int8_t* from, int64_t count, int16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

void gemm_w4ax(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &x_scales = call.input(1), &w = call.input(2), &w_scales = call.input(3);
  const Tensor& y = call.output(0);
  require_tensor(x, "x", DType::i8, {-1, -1});
  const int64_t tokens = x.dim(0), k = x.dim(1), blocks = k / kBlock;
  require(k > 0 && k % kBlock == 0, "x has " + std::to_string(k) + " columns, which is no multiple of 128");
  require_tensor(x_scales, "x_scales", DType::f32, {tokens, blocks});
  require_tensor(w, "w", DType::i8, {-1, k});
  const int64_t n = w.dim(0);
  require_tensor(w_scales, "w_scales", DType::f32, {n, blocks});
  require_tensor(y, "y", DType::f32, {tokens, n});
  const float* bias = nullptr;
  if (call.in.size() > 4) {
    require_tensor(call.input(4), "bias", DType::f32, {n});
    bias = call.input(4).data<float>();
  }
  const bool accumulate = call.params.number("accumulate", 0) != 0;
  const int8_t *x_codes = x.data<int8_t>(), *w_codes = w.data<int8_t>();
  const float *x_scale = x_scales.data<float>(), *w_scale = w_scales.data<float>();
  float* to = y.data<float>();
  const Kernels& kernels = active_kernels();
  exec.pool.parallel_for((tokens + kTokens - 1) / kTokens, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<int16_t> wide_x(static_cast<size_t>(kTokens * k)), wide_w(static_cast<size_t>(kRows * k));
    std::vector<float> row_scales(static_cast<size_t>(kRows * blocks));
    float sums[kTokens * kRows];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kTokens, count = std::min(kTokens, tokens - first);
      widen(x_codes + first * k, count * k, wide_x.data());
      for (int64_t row = 0; row < n; row += kRows) {
        const int64_t rows = std::min(kRows, n - row);
        std::fill(wide_w.begin() + rows * k, wide_w.end(), int16_t{0});
        std::fill(row_scales.begin() + rows * blocks, row_scales.end(), 0.0f);
        widen(w_codes + row * k, rows * k, wide_w.data());
        std::copy_n(w_scale + row * blocks, rows * blocks, row_scales.begin());
        kernels.multiply({wide_x.data(), wide_w.data(), x_scale + first * blocks, row_scales.data(), count, k}, sums);
        for (int64_t t = 0; t < count; ++t)
          for (int64_t r = 0; r < rows; ++r) {
            float& out = to[(first + t) * n + row + r];
            const float start = (accumulate ? out : 0.0f) + (bias ? bias[row + r] : 0.0f);
            out = start + sums[t * kRows + r];
          }
      }
    }
  });
}

}  // namespace
LPQ_OP(gemm_w4ax, "gemm_w4ax");
}  // namespace lpq::w4ax
