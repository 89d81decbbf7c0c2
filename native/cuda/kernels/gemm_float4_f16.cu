#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(float4_f16, 4, false, FloatCast)
LPQ_GEMM_WIDE(float4_f16, 4, false, FloatCast)
