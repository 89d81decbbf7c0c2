#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float6_bf16, c, 6, false, true, false)
