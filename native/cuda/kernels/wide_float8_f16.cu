#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(float8_f16, c, 8, false, false, false)
