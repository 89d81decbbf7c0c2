#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int8_bf16, c, 16, 2, 8, false, true, true)
LPQ_GEMM_SCALED(int8_bf16, c, 32, 1, 8, false, true, true)
LPQ_GEMM_SCALED(int8_bf16, z, 16, 2, 8, true, true, true)
