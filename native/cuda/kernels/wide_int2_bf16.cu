#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int2_bf16, c, 16, 2, 2, false, true, true)
LPQ_GEMM_SCALED(int2_bf16, c, 32, 1, 2, false, true, true)
LPQ_GEMM_SCALED(int2_bf16, z, 16, 2, 2, true, true, true)
