#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(float3_bf16, 3, true, FloatCast)
