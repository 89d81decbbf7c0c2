#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int4_f16, 4, false, IntCast)
LPQ_GEMM_WIDE(int4_f16, 4, false, IntCast)
