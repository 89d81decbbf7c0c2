#include "cuda/kernels/gemm_act.cuh"
LPQ_GEMM_ACT_TILES(Mixed, w4ax)
