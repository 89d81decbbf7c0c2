#include "cuda/kernels/gemm_turbomind.cuh"

using Integer = lpq::cuda::TurboMindInteger<4, false>;
using Float = lpq::cuda::TurboMindFloat<4, false>;
LPQ_STRIPES(turbomind_u4_f16, Integer, false)
LPQ_STRIPES(turbomind_f4_f16, Float, false)
