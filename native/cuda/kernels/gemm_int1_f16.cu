#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int1_f16, 1, false, IntCast)
