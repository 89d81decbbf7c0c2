// A loop over elements by all threads of a grid.
#pragma once
#include "cuda/types.cuh"

namespace lpq {

template <class F>
__device__ __forceinline__ void each(index_t count, F body) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x;
  for (index_t i = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}

}  // namespace lpq
