#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float7_f16, c, 7, false, false, false)
