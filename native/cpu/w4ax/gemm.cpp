// gemm_w4ax: integer products of activation and weight codes, rescaled block by block.
#include <vector>

#include "cpu/w4ax/codes.h"
#include "cpu/w4ax/kernels.h"
#include "ops/w4ax.h"

namespace lpq::w4ax {
namespace {

// Tokens that one pass over the weights serves.
constexpr int64_t kTokens = 32;

void widen(const int8_t* from, int64_t count, int16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

void gemm_w4ax(Call& call, Exec& exec) {
  const ops::GemmW4ax p(call);
  const int64_t tokens = p.tokens, n = p.n, k = p.k, blocks = p.blocks;
  const float* bias = p.bias ? p.bias->data<float>() : nullptr;
  const bool accumulate = p.accumulate;
  const int8_t *x_codes = p.x.data<int8_t>(), *w_codes = p.w.data<int8_t>();
  const float *x_scale = p.x_scales.data<float>(), *w_scale = p.w_scales.data<float>();
  float* to = p.y.data<float>();
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
