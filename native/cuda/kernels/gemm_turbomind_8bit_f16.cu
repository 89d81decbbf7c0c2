#include "cuda/kernels/gemm_turbomind.cuh"

using Integer = lpq::cuda::TurboMindInteger<8, false>;
using Float = lpq::cuda::TurboMindFloat<8, false>;
LPQ_STRIPES(turbomind_u8_f16, Integer, false)
LPQ_STRIPES(turbomind_f8_f16, Float, false)
