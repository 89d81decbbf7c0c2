#include "cuda/kernels/wide_scaled.cuh"

LPQ_GEMM_SCALED(int5_bf16, c, 5, false, true, true)
LPQ_GEMM_SCALED(int5_bf16, z, 5, true, true, true)
