#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(4, 256, 128, 128, 128)
LPQ_KV_DECODE(4, 256, 32, 32, 32)
