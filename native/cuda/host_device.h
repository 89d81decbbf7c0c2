// Functions that kernels and the host's planners share.
#pragma once

#ifdef __CUDACC__
#define LPQ_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LPQ_HOST_DEVICE inline
#endif

namespace lpq::cuda {

// First of `count` things of part `part` of `parts`, which are equal within one: count part / parts, by divisions of 32
// bits (one of 64 is a subroutine of some 150 instructions on a device). part <= parts < 65536.
LPQ_HOST_DEVICE constexpr int first_of_part(unsigned count, unsigned part, unsigned parts) {
  return static_cast<int>(count / parts * part + count % parts * part / parts);
}

}  // namespace lpq::cuda
