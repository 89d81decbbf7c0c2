#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(float4_bf16, 4, true, FloatCast)
LPQ_GEMM_WIDE(float4_bf16, 4, true, FloatCast)
