#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int6_f16, 6, false, WholeIntCast)
LPQ_LARGE_ELSEWHERE(int6_bf16, 6, true, WholeIntCast)
LPQ_LARGE_ELSEWHERE(float6_f16, 6, false, FloatCast)
LPQ_LARGE_ELSEWHERE(float6_bf16, 6, true, FloatCast)
