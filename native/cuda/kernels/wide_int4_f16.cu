#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int4_f16, c, 16, 2, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, c, 16, 1, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, c, 20, 1, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, c, 24, 1, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, c, 32, 1, 4, false, false, true)
LPQ_GEMM_SCALED(int4_f16, z, 16, 2, 4, true, false, true)
LPQ_GEMM_SCALED(int4_f16, z, 32, 1, 4, true, false, true)
