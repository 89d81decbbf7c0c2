#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(int1_bf16, 1, true, IntCast)
