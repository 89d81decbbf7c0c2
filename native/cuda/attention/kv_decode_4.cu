#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(4, 4, 64, kWide, 4_wide)
LPQ_KV_DECODE(4, 4, 64, kFine, 4_fine)
LPQ_KV_DECODE(4, 4, 64, kTokens, 4_token)
LPQ_KV_DECODE(4, 4, 64, kWords, 4_word)
LPQ_KV_DECODE(4, 4, 128, kWide, 4_wide)
LPQ_KV_DECODE(4, 4, 128, kFine, 4_fine)
LPQ_KV_DECODE(4, 4, 128, kTokens, 4_token)
LPQ_KV_DECODE(4, 4, 128, kWords, 4_word)
LPQ_KV_DECODE(4, 4, 256, kWide, 4_wide)
LPQ_KV_DECODE(4, 4, 256, kFine, 4_fine)
LPQ_KV_DECODE(4, 4, 256, kTokens, 4_token)
LPQ_KV_DECODE(4, 4, 256, kWords, 4_word)
