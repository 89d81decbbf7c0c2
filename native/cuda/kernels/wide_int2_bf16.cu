#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int2_bf16, c, 2, false, true, true)
LPQ_GEMM_SCALED(int2_bf16, z, 2, true, true, true)
