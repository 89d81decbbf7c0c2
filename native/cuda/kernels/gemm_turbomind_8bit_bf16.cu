#include "cuda/kernels/gemm_turbomind.cuh"

using Integer = lpq::cuda::TurboMindInteger<8, true>;
using Float = lpq::cuda::TurboMindFloat<8, true>;
LPQ_STRIPES(turbomind_u8_bf16, Integer, true)
LPQ_STRIPES(turbomind_f8_bf16, Float, true)
