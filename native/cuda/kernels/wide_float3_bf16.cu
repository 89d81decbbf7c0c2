#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float3_bf16, c, 16, 2, 3, false, true, false)
LPQ_GEMM_SCALED(float3_bf16, c, 32, 1, 3, false, true, false)
