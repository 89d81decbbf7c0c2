#include "cuda/kernels/gemm_marlin.cuh"

using Middle = lpq::cuda::MarlinForm<4, false, false>;
using WithZeros = lpq::cuda::MarlinForm<4, false, true>;
LPQ_STRIPES(marlin_u4_f16, Middle, false)
LPQ_STRIPES_ABLATION(marlin_u4_f16, Middle, false)
LPQ_STRIPES(marlin_u4z_f16, WithZeros, false)
