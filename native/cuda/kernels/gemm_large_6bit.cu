#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int6_f16, 6, false, WholeIntCast)
LPQ_LARGE(int6_bf16, 6, true, WholeIntCast)
LPQ_LARGE(float6_f16, 6, false, FloatCast)
LPQ_LARGE(float6_bf16, 6, true, FloatCast)
