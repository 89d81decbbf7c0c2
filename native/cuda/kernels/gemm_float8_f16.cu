#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(float8_f16, 8, false, FloatCast)
