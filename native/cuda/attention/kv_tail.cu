#include "cuda/attention/kv_tail.cuh"

LPQ_KV_SMALL(64)
LPQ_KV_SMALL(128)
LPQ_KV_SMALL(256)
