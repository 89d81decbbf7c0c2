#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float8_bf16, c, 16, 2, 8, false, true, false)
LPQ_GEMM_SCALED(float8_bf16, c, 32, 1, 8, false, true, false)
