// What alternating updates and sparse activations need beside other rows (ops/alternating.h). A block a row.
#include "cuda/nn/block_sum.cuh"
#include "cuda/types.cuh"

using namespace lpq;

extern "C" __global__ void lpq_match_rms(const float* x, const float* like, float* y, int width, float floor) {
  const index_t first = static_cast<index_t>(blockIdx.x) * width;
  float own = 0, wanted = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    own = __fmaf_rn(x[first + c], x[first + c], own);
    wanted = __fmaf_rn(like[first + c], like[first + c], wanted);
  }
  own = block_sum(own), wanted = block_sum(wanted);
  const float n = static_cast<float>(width), factor = sqrtf(wanted / n / fmaxf(own / n, floor));
  for (int c = threadIdx.x; c < width; c += blockDim.x) y[first + c] = x[first + c] * factor;
}

extern "C" __global__ void lpq_scale_columns(const float* x, const void* scales, int scales_type, float* y, int width,
                                             index_t count) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    y[i] = x[i] * load_any(scales, scales_type, i % width);
}

#define LPQ_GAUSSIAN_TOP_K(type, name)                                                                        \
  extern "C" __global__ void lpq_gaussian_top_k_##name(const type* x, type* y, int width, float deviations) { \
    const index_t first = static_cast<index_t>(blockIdx.x) * width;                                           \
    float sum = 0, square = 0;                                                                                \
    for (int c = threadIdx.x; c < width; c += blockDim.x) sum += widen(x[first + c]);                         \
    const float mean = block_sum(sum) / static_cast<float>(width);                                            \
    for (int c = threadIdx.x; c < width; c += blockDim.x) {                                                   \
      const float d = widen(x[first + c]) - mean;                                                             \
      square = __fmaf_rn(d, d, square);                                                                       \
    }                                                                                                         \
    const float cutoff = __fmaf_rn(deviations, sqrtf(block_sum(square) / static_cast<float>(width)), mean);   \
    for (int c = threadIdx.x; c < width; c += blockDim.x)                                                     \
      y[first + c] = narrow<type>(fmaxf(widen(x[first + c]) - cutoff, 0.0f));                                 \
  }
LPQ_EACH_TYPE(LPQ_GAUSSIAN_TOP_K)
