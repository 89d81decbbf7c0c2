#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float8_bf16, c, 8, false, true, false)
