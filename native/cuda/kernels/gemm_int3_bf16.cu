#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(int3_bf16, 3, true, IntCast)
LPQ_GEMM_WIDE(int3_bf16, 3, true, IntCast)
