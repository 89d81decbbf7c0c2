#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int1_f16, c, 1, false, false, true)
LPQ_GEMM_SCALED(int1_f16, z, 1, true, false, true)
