#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int3_f16, c, 3, false, false, true)
LPQ_GEMM_SCALED(int3_f16, z, 3, true, false, true)
