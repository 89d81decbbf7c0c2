#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float6_f16, c, 16, 2, 6, false, false, false)
LPQ_GEMM_SCALED(float6_f16, c, 32, 1, 6, false, false, false)
