#include "cuda/kernels/gemm_few.cuh"

#define LPQ_GEMM_FEW(tiles, rows, deep)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kFewWarps, 1) lpq_gemm_few_t##tiles##_r##rows(const __grid_constant__ lpq::cuda::FewArgs a) { \
    lpq::cuda::gemm_few<tiles, rows, deep>(a);                                                                                                       \
  }
LPQ_GEMM_FEW(1, 2, 2)
LPQ_GEMM_FEW(1, 4, 1)
LPQ_GEMM_FEW(2, 2, 2)
LPQ_GEMM_FEW(2, 4, 1)
