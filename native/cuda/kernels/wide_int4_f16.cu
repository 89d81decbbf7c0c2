#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int4_f16, c, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, z, 4, true, false, true)
