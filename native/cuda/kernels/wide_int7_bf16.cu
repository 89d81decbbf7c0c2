#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int7_bf16, c, 16, 2, 7, false, true, true)
LPQ_GEMM_SCALED(int7_bf16, c, 32, 1, 7, false, true, true)
LPQ_GEMM_SCALED(int7_bf16, z, 16, 2, 7, true, true, true)
