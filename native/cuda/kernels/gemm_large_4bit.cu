#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int4_f16, 4, false, WholeIntCast)
LPQ_LARGE(int4_bf16, 4, true, WholeIntCast)
LPQ_LARGE(float4_f16, 4, false, FloatCast)
LPQ_LARGE(float4_bf16, 4, true, FloatCast)
