#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float7_f16, c, 16, 2, 7, false, false, false)
LPQ_GEMM_SCALED(float7_f16, c, 32, 1, 7, false, false, false)
