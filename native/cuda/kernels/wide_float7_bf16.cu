#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float7_bf16, c, 16, 2, 7, false, true, false)
LPQ_GEMM_SCALED(float7_bf16, c, 32, 1, 7, false, true, false)
