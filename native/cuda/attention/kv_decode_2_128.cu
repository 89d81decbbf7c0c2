#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(2, 128, 128, 128, 128)
LPQ_KV_DECODE(2, 128, 32, 32, 32)
