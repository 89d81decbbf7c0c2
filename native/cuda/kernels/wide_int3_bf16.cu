#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int3_bf16, c, 3, false, true, true)
LPQ_GEMM_SCALED(int3_bf16, z, 3, true, true, true)
