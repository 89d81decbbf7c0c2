#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int3_f16, 3, false, WholeIntCast)
LPQ_LARGE(int3_bf16, 3, true, WholeIntCast)
LPQ_LARGE_ELSEWHERE(float3_f16, 3, false, FloatCast)
LPQ_LARGE_ELSEWHERE(float3_bf16, 3, true, FloatCast)
