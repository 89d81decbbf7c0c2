#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(2, 2, 64, kWide, 2_wide)
LPQ_KV_DECODE(2, 2, 64, kFine, 2_fine)
LPQ_KV_DECODE(2, 2, 64, kTokens, 2_token)
LPQ_KV_DECODE(2, 2, 128, kWide, 2_wide)
LPQ_KV_DECODE(2, 2, 128, kFine, 2_fine)
LPQ_KV_DECODE(2, 2, 128, kTokens, 2_token)
LPQ_KV_DECODE(2, 2, 256, kWide, 2_wide)
LPQ_KV_DECODE(2, 2, 256, kFine, 2_fine)
LPQ_KV_DECODE(2, 2, 256, kTokens, 2_token)
