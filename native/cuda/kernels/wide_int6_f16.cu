#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int6_f16, c, 16, 2, 6, false, false, true)
LPQ_GEMM_SCALED(int6_f16, c, 32, 1, 6, false, false, true)
LPQ_GEMM_SCALED(int6_f16, z, 16, 2, 6, true, false, true)
