#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int2_f16, 2, false, IntCast)
