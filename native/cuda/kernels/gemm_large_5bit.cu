#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int5_f16, 5, false, WholeIntCast)
LPQ_LARGE_ELSEWHERE(int5_bf16, 5, true, WholeIntCast)
LPQ_LARGE_ELSEWHERE(float5_f16, 5, false, FloatCast)
LPQ_LARGE_ELSEWHERE(float5_bf16, 5, true, FloatCast)
