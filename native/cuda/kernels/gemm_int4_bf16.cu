#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(int4_bf16, 4, true, IntCast)
LPQ_GEMM_WIDE(int4_bf16, 4, true, IntCast)
