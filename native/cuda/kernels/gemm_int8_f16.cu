#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int8_f16, 8, false, IntCast)
LPQ_GEMM_WIDE(int8_f16, 8, false, IntCast)
