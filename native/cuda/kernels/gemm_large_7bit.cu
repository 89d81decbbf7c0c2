#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int7_f16, 7, false, WholeIntCast)
LPQ_LARGE_ELSEWHERE(int7_bf16, 7, true, WholeIntCast)
LPQ_LARGE_ELSEWHERE(float7_f16, 7, false, FloatCast)
LPQ_LARGE_ELSEWHERE(float7_bf16, 7, true, FloatCast)
