#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float5_bf16, c, 5, false, true, false)
