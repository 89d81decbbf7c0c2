#include "cuda/kernels/gemm_turbomind.cuh"

using Integer = lpq::cuda::TurboMindInteger<4, true>;
using Float = lpq::cuda::TurboMindFloat<4, true>;
LPQ_STRIPES(turbomind_u4_bf16, Integer, true)
LPQ_STRIPES(turbomind_f4_bf16, Float, true)
