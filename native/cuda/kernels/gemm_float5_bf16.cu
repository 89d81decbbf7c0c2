#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PACKED(float5_bf16, 5, true, FloatCast)
