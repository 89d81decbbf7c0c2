#include "cuda/kernels/gemm_act.cuh"
LPQ_GEMM_ACT_TILES(NibblesFloat, w4f8)
