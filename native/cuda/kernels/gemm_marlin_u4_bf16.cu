#include "cuda/kernels/gemm_marlin.cuh"

using Middle = lpq::cuda::MarlinForm<4, true, false>;
using WithZeros = lpq::cuda::MarlinForm<4, true, true>;
LPQ_STRIPES(marlin_u4_bf16, Middle, true)
LPQ_STRIPES(marlin_u4z_bf16, WithZeros, true)
