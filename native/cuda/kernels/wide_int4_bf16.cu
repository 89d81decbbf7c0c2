#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int4_bf16, c, 4, false, true, true)
LPQ_GEMM_SCALED(int4_bf16, z, 4, true, true, true)
