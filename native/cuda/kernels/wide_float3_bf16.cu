#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float3_bf16, c, 3, false, true, false)
