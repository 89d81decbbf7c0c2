#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(int2_bf16, 2, true, IntCast)
