#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float6_f16, c, 6, false, false, false)
