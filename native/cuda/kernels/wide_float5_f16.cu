#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float5_f16, c, 16, 2, 5, false, false, false)
LPQ_GEMM_SCALED(float5_f16, c, 32, 1, 5, false, false, false)
