// Functions that the host's compiler and nvcc both take.
#pragma once

#if defined(__CUDACC__)
#define LPQ_EVERYWHERE __host__ __device__ __forceinline__
#else
#define LPQ_EVERYWHERE inline
#endif
