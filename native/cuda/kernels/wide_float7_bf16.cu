#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float7_bf16, c, 7, false, true, false)
