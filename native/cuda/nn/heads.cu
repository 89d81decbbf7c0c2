// Columns moved between the heads of two matrices.
#include "cuda/types.cuh"

using namespace lpq;

// y[t][h][to + c] = x[t][h][from + c], c < width; shared: of the one head of x.
#define LPQ_COPY_HEADS(type, name)                                                                              \
  extern "C" __global__ void lpq_copy_heads_##name(const type* x, type* y, index_t count, int heads, int width, \
                                                   int from_dim, int from, int to_dim, int to, int shared) {    \
    const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;                                          \
    for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {       \
      const index_t head = i / width, c = i % width;                                                            \
      y[head * to_dim + to + c] = x[(shared ? head / heads : head) * from_dim + from + c];                      \
    }                                                                                                           \
  }
LPQ_EACH_TYPE(LPQ_COPY_HEADS)
