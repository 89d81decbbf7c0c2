// Sums over a block of whole warps, in every thread, made in the same order every time.
#pragma once
#include "cuda/types.cuh"

namespace lpq {

template <class T>
__device__ T block_sum(T value) {
  __shared__ T parts[32];
  value = warp_sum(value);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  return sum;
}

}  // namespace lpq
