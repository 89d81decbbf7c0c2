// The gate of GPT-OSS's experts (arXiv:2508.10925, section 2).
#include "cuda/types.cuh"

using namespace lpq;

#define LPQ_CLAMPED_SWIGLU(type, name)                                                                         \
  extern "C" __global__ void lpq_clamped_swiglu_##name(const type* gate, const type* up, type* y, float alpha, \
                                                       float limit, index_t count) {                           \
    const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;                                         \
    for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {      \
      const float g = widen(gate[i]), u = widen(up[i]);                                                        \
      const float slope = alpha * (g > limit ? limit : g); /* comparisons let NaN through */                   \
      const float line = ((u > limit ? limit : u < -limit ? -limit : u) + 1.0f) / alpha;                       \
      y[i] = narrow<type>(slope / (1.0f + expf(-slope)) * line);                                               \
    }                                                                                                          \
  }
LPQ_EACH_TYPE(LPQ_CLAMPED_SWIGLU)
