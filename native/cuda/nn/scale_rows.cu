// Rows multiplied by a number each; xIELU (arXiv:2411.13010). ops/elementwise.h says what.
#include "cuda/types.cuh"

using namespace lpq;

namespace {

template <class F>
__device__ __forceinline__ void every(index_t count, F body) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace

// `each`: scales has one a row, else one for all; null: 1.
#define LPQ_SCALE_ROWS(type, name)                                                                              \
  extern "C" __global__ void lpq_scale_rows_##name(const type* x, const void* scales, int scales_type, type* y, \
                                                   float factor, index_t count, index_t width, index_t pitch,   \
                                                   int each) {                                                  \
    every(count, [&](index_t i) {                                                                               \
      const index_t row = i / width, at = row * pitch + i % width;                                              \
      const float by = scales ? load_any(scales, scales_type, each ? row : 0) * factor : factor;                \
      y[at] = narrow<type>(widen(x[at]) * by);                                                                  \
    });                                                                                                         \
  }
LPQ_EACH_TYPE(LPQ_SCALE_ROWS)

#define LPQ_XIELU(type, name)                                                                          \
  extern "C" __global__ void lpq_xielu_##name(                                                         \
      const type* x, const void* positive, int positive_type, const void* negative, int negative_type, \
      const void* betas, int beta_type, const void* epsilons, int eps_type, type* y, index_t count) {  \
    const float beta = load_any(betas, beta_type, 0), eps = load_any(epsilons, eps_type, 0);           \
    const float above = softplus(load_any(positive, positive_type, 0));                                \
    const float below = beta + softplus(load_any(negative, negative_type, 0));                         \
    every(count, [&](index_t i) {                                                                      \
      const float v = widen(x[i]);                                                                     \
      const float bent = v > 0 ? above * v * v : below * (expm1f(v < eps ? v : eps) - v);              \
      y[i] = narrow<type>(bent + beta * v);                                                            \
    });                                                                                                \
  }
LPQ_EACH_TYPE(LPQ_XIELU)
