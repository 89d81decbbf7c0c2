// Quantizes latents and packs them with their rotary dims: latent_pack and latent_append. A block takes four tokens,
// (thread) -> dims 8 (thread % 64) .. of token thread / 64; a group is 4 to 16 lanes.
#pragma once
#include "cuda/attention/latent_shape.h"
#include "cuda/numbers.cuh"

namespace lpq::cuda {

// Word of two halves `i` of four.
__device__ __forceinline__ uint32_t latent_word(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Scale, zero and codes of 8 dims among `lanes` lanes of a group; to codes and, by the first of them, numbers.
template <int BITS>
__device__ __forceinline__ void latent_codes(const LatentPackArgs& a, const uint4& x, int c, unsigned char* codes,
                                             unsigned char* numbers, bool there) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  float v[8], low = INFINITY, high = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t word = latent_word(x, i / 2);
    v[i] = i % 2 ? high_half(word) : low_half(word);
    low = fminf(low, v[i]), high = fmaxf(high, v[i]);
  }
  const int lanes = a.group / 8;
#pragma unroll 1
  for (int mask = 1; mask < lanes; mask *= 2) {
    low = fminf(low, __shfl_xor_sync(0xffffffffu, low, mask));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, mask));
  }
  if (!there) return;
  low += 0.0f;  // -0 is stored as 0
  const uint16_t scale_bits = from_float<false>(__fdiv_rn(high - low, top));
  const float scale = to_float<false>(scale_bits);
  uint32_t word[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float above = scale > 0 ? fminf(__fdiv_rn(v[i] - low, scale), top) : 0.0f;
    // Adding 3 * 2^22 rounds to integers, ties to even.
    const uint32_t code = __float_as_uint(above + 12582912.0f) & 0xff;
    const int pair = i / 2;
    if (BITS == 8) word[pair / 2] |= code << (i % 2 * 16 + pair % 2 * 8);
    else word[0] |= code << (i % 2 * 16 + pair * BITS);
  }
  if constexpr (BITS == 8) {
    *reinterpret_cast<uint2*>(codes + 8 * c) = make_uint2(word[0], word[1]);
  } else if constexpr (BITS == 4) {
    *reinterpret_cast<uint32_t*>(codes + 4 * c) = word[0];
  } else {  // half of a word of 16 dims
    codes[c / 2 * 4 + c % 2] = static_cast<unsigned char>(word[0]);
    codes[c / 2 * 4 + 2 + c % 2] = static_cast<unsigned char>(word[0] >> 16);
  }
  if (c % lanes == 0)
    *reinterpret_cast<uint32_t*>(numbers + c / lanes * 4) = scale_bits | static_cast<uint32_t>(from_float<false>(low))
                                                                             << 16;
}

__device__ __forceinline__ bool latent_finite(const uint4& x) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = latent_word(x, i);
    finite = finite && (word & 0x7c00u) != 0x7c00u && (word & 0x7c000000u) != 0x7c000000u;
  }
  return finite;
}

template <int BITS>
__device__ __forceinline__ void latent_pack(const LatentPackArgs& a) {
  const int thread = static_cast<int>(threadIdx.x), c = thread % 64,
            i = static_cast<int>(blockIdx.x) * (kLatentThreads / 64) + thread / 64;
  const bool token = i < a.tokens;
  int t = a.first + i;
  const int* table = a.table;
  if (a.lengths) t = token ? a.lengths[i] : 0, table += token ? static_cast<long long>(i) * a.table_pages : 0;
  bool packs = token && t >= 0 && t < a.table_pages * a.page_tokens;
  int page = packs ? table[t / a.page_tokens] : -1;
  packs = packs && static_cast<unsigned>(page) < static_cast<unsigned>(a.page_count);
  if (token && !packs) *a.fault_page = 1;
  page = packs ? page : 0;
  const int in = packs ? t % a.page_tokens : 0;
  unsigned char* const to = a.pages + page * a.page_bytes;
  const bool own = packs && 8 * c < a.latent, turned = packs && 8 * c < a.rotary;
  const uint4 none = make_uint4(0, 0, 0, 0);
  const uint4 x = own ? *reinterpret_cast<const uint4*>(a.c + static_cast<long long>(i) * a.latent + 8 * c) : none,
              r = turned ? *reinterpret_cast<const uint4*>(a.rotary_dims + static_cast<long long>(i) * a.rotary + 8 * c)
                         : none;
  if (!latent_finite(x) || !latent_finite(r)) *a.fault = 1;
  if (turned) *reinterpret_cast<uint4*>(to + a.rope + 2ll * in * a.rotary + 16 * c) = r;
  if constexpr (BITS == 16) {
    if (own) *reinterpret_cast<uint4*>(to + 2ll * in * a.latent + 16 * c) = x;
  } else {
    latent_codes<BITS>(a, x, c, to + static_cast<long long>(in) * (a.latent * BITS / 8),
                       to + a.numbers + static_cast<long long>(in) * a.number_row, own);
  }
  if (!a.lengths) return;
  __syncthreads();
  if (packs && c == 0) a.lengths[i] = t + 1;
}

}  // namespace lpq::cuda
