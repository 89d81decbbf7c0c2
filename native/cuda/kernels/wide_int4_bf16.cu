#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int4_bf16, c, 16, 2, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, c, 16, 1, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, c, 20, 1, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, c, 24, 1, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, c, 32, 1, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, z, 16, 2, 4, true, true, true)
LPQ_GEMM_SCALED(int4_bf16, z, 32, 1, 4, true, true, true)
