#include "cuda/attention/kv_decode.cuh"

LPQ_KV_DECODE(8, 8, 64, kWide, 8_wide)
LPQ_KV_DECODE(8, 8, 64, kFine, 8_fine)
LPQ_KV_DECODE(8, 8, 64, kTokens, 8_token)
LPQ_KV_DECODE(8, 8, 64, kWords, 8_word)
LPQ_KV_DECODE(8, 8, 128, kWide, 8_wide)
LPQ_KV_DECODE(8, 8, 128, kFine, 8_fine)
LPQ_KV_DECODE(8, 8, 128, kTokens, 8_token)
LPQ_KV_DECODE(8, 8, 128, kWords, 8_word)
LPQ_KV_DECODE(8, 8, 256, kWide, 8_wide)
LPQ_KV_DECODE(8, 8, 256, kFine, 8_fine)
LPQ_KV_DECODE(8, 8, 256, kTokens, 8_token)
LPQ_KV_DECODE(8, 8, 256, kWords, 8_word)
