#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(8, 4, 64, kWide, 84_wide)
LPQ_KV_DECODE(8, 4, 64, kFine, 84_fine)
LPQ_KV_DECODE(8, 4, 64, kTokens, 84_token)
LPQ_KV_DECODE(8, 4, 64, kWords, 84_word)
LPQ_KV_DECODE(8, 4, 128, kWide, 84_wide)
LPQ_KV_DECODE(8, 4, 128, kFine, 84_fine)
LPQ_KV_DECODE(8, 4, 128, kTokens, 84_token)
LPQ_KV_DECODE(8, 4, 128, kWords, 84_word)
LPQ_KV_DECODE(8, 4, 256, kWide, 84_wide)
LPQ_KV_DECODE(8, 4, 256, kFine, 84_fine)
LPQ_KV_DECODE(8, 4, 256, kTokens, 84_token)
LPQ_KV_DECODE(8, 4, 256, kWords, 84_word)
