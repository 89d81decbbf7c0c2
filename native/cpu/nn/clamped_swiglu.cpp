// The gate of GPT-OSS's experts (model card, arXiv:2508.10925, section 2): a SwiGLU with a slope, clamped, with a
// residual one on the linear side.
#include <algorithm>

#include "cpu/checks.h"
#include "cpu/nn/vector.h"

namespace lpq::nn {
namespace {

constexpr int64_t kChunk = 512;

void clamped_swiglu(Call& call, Exec& exec) {
  const Tensor &gate = call.input(0), &up = call.input(1), &y = call.output(0);
  require_dtype(gate, "gate", {DType::f32});
  require_tensor(up, "up", DType::f32, gate.shape);
  require_tensor(y, "y", DType::f32, gate.shape);
  const float alpha = static_cast<float>(call.params.number("alpha")),
              limit = static_cast<float>(call.params.number("limit"));
  require(alpha > 0, "alpha is " + std::to_string(alpha) + ", not positive");
  require(limit > 0, "limit is " + std::to_string(limit) + ", not positive");
  const float *g = gate.data<float>(), *u = up.data<float>();
  float* out = y.data<float>();
  exec.pool.parallel_for(gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    float slope[kChunk], line[kChunk];
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t n = std::min(kChunk, end - first);
      // gate * sigmoid(alpha * gate) is silu(alpha * gate) / alpha. The comparisons let NaN through.
      for (int64_t i = 0; i < n; ++i) {
        const float a = g[first + i], b = u[first + i];
        slope[i] = alpha * (a > limit ? limit : a);
        line[i] = ((b > limit ? limit : b < -limit ? -limit : b) + 1.0f) / alpha;
      }
      vector_kernels().gated(Act::silu, slope, line, out + first, n);
    }
  });
}

}  // namespace
LPQ_OP(clamped_swiglu, "clamped_swiglu");
}  // namespace lpq::nn
