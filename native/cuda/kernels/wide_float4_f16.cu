#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float4_f16, c, 4, false, false, false)
