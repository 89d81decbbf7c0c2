// The gate of GPT-OSS's experts (model card, arXiv:2508.10925, section 2): a SwiGLU with a slope, clamped, with a
// residual one on the linear side.
#include <algorithm>

#include "cpu/checks.h"
#include "cpu/nn/vector.h"
#include "ops/elementwise.h"

namespace lpq::nn {
namespace {

constexpr int64_t kChunk = 512;

void clamped_swiglu(Call& call, Exec& exec) {
  const ops::ClampedSwiglu a(call);
  require_f32({{&a.gate, "gate"}});
  const float *g = a.gate.data<float>(), *u = a.up.data<float>(), alpha = a.alpha, limit = a.limit;
  float* out = a.y.data<float>();
  exec.pool.parallel_for(a.gate.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    float slope[kChunk], line[kChunk];
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t n = std::min(kChunk, end - first);
      // gate * sigmoid(alpha * gate) is silu(alpha * gate) / alpha. The comparisons let NaN through.
      for (int64_t i = 0; i < n; ++i) {
        const float x = g[first + i], b = u[first + i];
        slope[i] = alpha * (x > limit ? limit : x);
        line[i] = ((b > limit ? limit : b < -limit ? -limit : b) + 1.0f) / alpha;
      }
      vector_kernels().gated(Act::silu, slope, line, out + first, n);
    }
  });
}

}  // namespace
LPQ_OP(clamped_swiglu, "clamped_swiglu");
}  // namespace lpq::nn
