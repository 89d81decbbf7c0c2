#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int1_f16, c, 16, 2, 1, false, false, true)
LPQ_GEMM_SCALED(int1_f16, c, 32, 1, 1, false, false, true)
LPQ_GEMM_SCALED(int1_f16, z, 16, 2, 1, true, false, true)
