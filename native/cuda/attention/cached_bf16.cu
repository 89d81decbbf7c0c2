#include "cuda/attention/cached.cuh"

LPQ_CACHED(bf16, true, 64)
LPQ_CACHED(bf16, true, 128)
LPQ_CACHED(bf16, true, 256)
