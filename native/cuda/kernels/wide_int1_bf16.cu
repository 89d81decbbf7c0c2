#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int1_bf16, c, 1, false, true, true)
LPQ_GEMM_SCALED(int1_bf16, z, 1, true, true, true)
