#include "cuda/kernels/gemm_act.cuh"
LPQ_GEMM_ACT_TILES(BytesInt, i8)
