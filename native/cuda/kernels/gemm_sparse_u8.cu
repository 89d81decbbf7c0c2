#include "cuda/kernels/gemm_sparse.cuh"

LPQ_SPARSE(u8_f16, 8, false)
LPQ_SPARSE(u8_bf16, 8, true)
