#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float3_f16, c, 3, false, false, false)
