#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int7_f16, c, 16, 2, 7, false, false, true)
LPQ_GEMM_SCALED(int7_f16, c, 32, 1, 7, false, false, true)
LPQ_GEMM_SCALED(int7_f16, z, 16, 2, 7, true, false, true)
