#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int6_bf16, c, 16, 2, 6, false, true, true)
LPQ_GEMM_SCALED(int6_bf16, c, 32, 1, 6, false, true, true)
LPQ_GEMM_SCALED(int6_bf16, z, 16, 2, 6, true, true, true)
