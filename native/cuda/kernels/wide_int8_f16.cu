#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int8_f16, c, 8, false, false, true)
LPQ_GEMM_SCALED(int8_f16, z, 8, true, false, true)
