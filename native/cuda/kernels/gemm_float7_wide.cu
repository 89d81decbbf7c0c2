// f16 activations times floats whose exponents f16 does not hold: both as bf16, the activations in two parts.
#include "cuda/kernels/gemm_packed.cuh"

#define LPQ_WEIGHTS_BF16 true
LPQ_GEMM_PORTABLE(float7_wide, 7, false, FloatCast)
LPQ_GEMM_STREAM_SPLIT(float7_wide, 7, FloatCast)
