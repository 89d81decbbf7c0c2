#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(float6_f16, 6, false, FloatCast)
LPQ_GEMM_WIDE(float6_f16, 6, false, FloatCast)
