#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int5_bf16, c, 16, 2, 5, false, true, true)
LPQ_GEMM_SCALED(int5_bf16, c, 32, 1, 5, false, true, true)
LPQ_GEMM_SCALED(int5_bf16, z, 16, 2, 5, true, true, true)
