// Keys and values of kv_pack.cuh in the order of turbomind.
#pragma once
#include "cuda/attention/kv_pack/groups.cuh"

namespace lpq::cuda {

// turbomind: a token of a head at once, PARTS times eight dims a lane, in the order 75316420 of 4 bits.
template <int BITS, int PARTS>
__device__ __forceinline__ void pack_words(const KvPackArgs& a, const unsigned short* from, unsigned char* to,
                                           unsigned char* number, int head_dims, int dims, bool there) {
  const int lanes = dims / (8 * PARTS), own = static_cast<int>(threadIdx.x & 31) % lanes;
  uint4 x[PARTS];
  KvRange2 found;
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const int dim = 8 * (own + p * lanes);
    x[p] = dim < head_dims ? *reinterpret_cast<const uint4*>(from + dim) : make_uint4(0, 0, 0, 0);
    found.add(x[p].x), found.add(x[p].y), found.add(x[p].z), found.add(x[p].w);
  }
  uint32_t range = found.of_both();
  for (int mask = 1; mask < lanes; mask *= 2) range = min_nan_f16x2(range, __shfl_xor_sync(0xffffffffu, range, mask));
  const KvPackGroup g =
      pack_group<BITS>(a, pack_first_zero(range, dims, [&](int i) { return i < head_dims ? uint32_t{from[i]} : 0u; }));
  if (!there) return;
  if (own == 0) *reinterpret_cast<uint32_t*>(number) = g.scale_bits | static_cast<uint32_t>(g.zero_bits) << 16;
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const uint32_t pairs[4] = {x[p].x, x[p].y, x[p].z, x[p].w};
    unsigned char* const eight = to + BITS * (own + p * lanes);
    if constexpr (BITS == 4) {
      uint32_t word = 0 - pack_excess<BITS>(0, 4), unsure = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) pack_likely_pair(word, pairs[i], g, g, 4 * i, unsure);
      if (unsure) {
        word = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) word |= pack_exact_pair<BITS>(pairs[i], g, g) << 4 * i;
      }
      *reinterpret_cast<uint32_t*>(eight) = word;
    } else {
      uint32_t word[2] = {}, unsure = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        word[i / 2] += (pack_likely(low_half(pairs[i]), g, unsure) - kPackBits) << (16 * (i & 1)),
            word[i / 2] += (pack_likely(high_half(pairs[i]), g, unsure) - kPackBits) << (16 * (i & 1) + 8);
      if (unsure)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = pack_exact_pair<BITS>(pairs[i], g, g), bytes = (pair | pair >> 8) & 0xffffu;
          word[i / 2] = i % 2 ? (word[i / 2] & 0xffffu) | bytes << 16 : (word[i / 2] & 0xffff0000u) | bytes;
        }
      *reinterpret_cast<uint2*>(eight) = make_uint2(word[0], word[1]);
    }
  }
}

}  // namespace lpq::cuda
