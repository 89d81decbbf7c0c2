#include "cuda/kernels/gemm_marlin.cuh"

using Middle = lpq::cuda::MarlinForm<8, false, false>;
using WithZeros = lpq::cuda::MarlinForm<8, false, true>;
LPQ_STRIPES(marlin_u8_f16, Middle, false)
LPQ_STRIPES(marlin_u8z_f16, WithZeros, false)
