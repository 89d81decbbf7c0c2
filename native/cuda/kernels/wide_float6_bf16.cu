#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float6_bf16, c, 16, 2, 6, false, true, false)
LPQ_GEMM_SCALED(float6_bf16, c, 32, 1, 6, false, true, false)
