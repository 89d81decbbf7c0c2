#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int3_f16, c, 16, 2, 3, false, false, true)
LPQ_GEMM_SCALED(int3_f16, c, 32, 1, 3, false, false, true)
LPQ_GEMM_SCALED(int3_f16, z, 16, 2, 3, true, false, true)
