#include "cuda/attention/kv_combine.cuh"

LPQ_KV_COMBINE(64)
LPQ_KV_COMBINE(128)
LPQ_KV_COMBINE(256)
