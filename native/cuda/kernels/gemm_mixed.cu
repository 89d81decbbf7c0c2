#include "cuda/kernels/gemm_mixed.cuh"

#define LPQ_GEMM_MIXED(tiles)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kMixedThreads, 1) lpq_gemm_mixed_t##tiles(const __grid_constant__ lpq::cuda::MixedArgs a) { \
    lpq::cuda::gemm_mixed<tiles>(a);                                                                                                      \
  }
LPQ_GEMM_MIXED(2)
LPQ_GEMM_MIXED(8)
LPQ_GEMM_MIXED(16)
