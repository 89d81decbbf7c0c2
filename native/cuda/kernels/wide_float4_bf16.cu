#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float4_bf16, c, 4, false, true, false)
