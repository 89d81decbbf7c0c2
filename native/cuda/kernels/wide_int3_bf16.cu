#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int3_bf16, c, 16, 2, 3, false, true, true)
LPQ_GEMM_SCALED(int3_bf16, c, 32, 1, 3, false, true, true)
LPQ_GEMM_SCALED(int3_bf16, z, 16, 2, 3, true, true, true)
