#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(int7_f16, 7, false, IntCast)
