#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int2_f16, 2, false, WholeIntCast)
LPQ_LARGE(int2_bf16, 2, true, WholeIntCast)
