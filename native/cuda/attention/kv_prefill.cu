#include "cuda/attention/kv_prefill.cuh"

LPQ_KV_PREFILL(64)
LPQ_KV_PREFILL(128)
LPQ_KV_PREFILL(256)
