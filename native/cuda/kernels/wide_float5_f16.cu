#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float5_f16, c, 5, false, false, false)
