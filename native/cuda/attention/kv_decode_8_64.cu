#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(8, 64, 128, 128, 64)
LPQ_KV_DECODE(8, 64, 32, 32, 32)
