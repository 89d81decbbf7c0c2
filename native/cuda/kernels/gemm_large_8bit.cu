#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int8_f16, 8, false, WholeIntCast)
LPQ_LARGE(int8_bf16, 8, true, WholeIntCast)
LPQ_LARGE(float8_f16, 8, false, FloatCast)
LPQ_LARGE(float8_bf16, 8, true, FloatCast)
