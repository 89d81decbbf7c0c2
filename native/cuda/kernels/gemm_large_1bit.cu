#include "cuda/kernels/gemm_large.cuh"

LPQ_LARGE(int1_f16, 1, false, WholeIntCast)
LPQ_LARGE(int1_bf16, 1, true, WholeIntCast)
