#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float4_bf16, c, 16, 2, 4, false, true, false)
LPQ_GEMM_SCALED(float4_bf16, c, 32, 1, 4, false, true, false)
