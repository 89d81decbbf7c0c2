#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int2_f16, c, 16, 2, 2, false, false, true)
LPQ_GEMM_SCALED(int2_f16, c, 32, 1, 2, false, false, true)
LPQ_GEMM_SCALED(int2_f16, z, 16, 2, 2, true, false, true)
