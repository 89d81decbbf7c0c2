#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int5_f16, c, 5, false, false, true)
LPQ_GEMM_SCALED(int5_f16, z, 5, true, false, true)
