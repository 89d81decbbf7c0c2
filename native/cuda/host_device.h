// Functions that kernels and the host's planners share.
#pragma once

#ifdef __CUDACC__
#define LPQ_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LPQ_HOST_DEVICE inline
#endif
