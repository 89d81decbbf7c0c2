#include "cuda/kernels/gemm_sparse.cuh"

LPQ_SPARSE(u4_f16, 4, false)
LPQ_SPARSE(u4_bf16, 4, true)
