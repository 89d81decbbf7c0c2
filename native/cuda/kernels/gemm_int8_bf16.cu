#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(int8_bf16, 8, true, IntCast)
LPQ_GEMM_WIDE(int8_bf16, 8, true, IntCast)
