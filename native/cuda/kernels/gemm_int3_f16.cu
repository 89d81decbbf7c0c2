#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int3_f16, 3, false, IntCast)
LPQ_GEMM_WIDE(int3_f16, 3, false, IntCast)
