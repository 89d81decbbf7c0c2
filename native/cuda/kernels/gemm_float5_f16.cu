#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 false
LPQ_GEMM_PACKED(float5_f16, 5, false, FloatCast)
