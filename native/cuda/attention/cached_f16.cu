#include "cuda/attention/cached.cuh"

LPQ_CACHED(f16, false, 64)
LPQ_CACHED(f16, false, 128)
LPQ_CACHED(f16, false, 256)
