#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int8_bf16, c, 8, false, true, true)
LPQ_GEMM_SCALED(int8_bf16, z, 8, true, true, true)
