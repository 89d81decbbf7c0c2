#include "cuda/kernels/gemm_marlin.cuh"

using Middle = lpq::cuda::MarlinForm<8, true, false>;
using WithZeros = lpq::cuda::MarlinForm<8, true, true>;
LPQ_STRIPES(marlin_u8_bf16, Middle, true)
LPQ_STRIPES(marlin_u8z_bf16, WithZeros, true)
