#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(float6_bf16, 6, true, FloatCast)
LPQ_GEMM_WIDE(float6_bf16, 6, true, FloatCast)
