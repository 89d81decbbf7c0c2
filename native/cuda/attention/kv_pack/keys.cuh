// Keys of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_pack/groups.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Keys of S times 32 tokens and of 64 dims from `dim` on, for four warps: once for the ranges of groups, which warps
// exchange, and once more, from L1, for codes.
template <int BITS, int S, bool BY_TOKEN>
__device__ __forceinline__ void pack_keys(const KvPackArgs& a, const KvPackBlock& b, int dim, int part) {
  constexpr int R = 16 / BITS,
                kAtOnce = BITS == 2 ? 2 : 4;  // thirties-two of tokens whose loads are under way together
  const KvDecodeArgs& p = a.places;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) & 3,
            d = dim + 2 * lane, shift = 31 - __clz(p.key_group);
  uint2* const of_channels = reinterpret_cast<uint2*>(dynamic_shared()) + part * S * 4 * 32;  // [S][4][32]
  const auto of_token = [&](int half, int s) {
    return reinterpret_cast<uint32_t*>(dynamic_shared()) + ((half * S + s) * 4 + warp) * 8 + (lane & 7);
  };  // [2][S][4][8]
  const unsigned short* const from = b.from + static_cast<long long>(8 * warp) * b.row + d;
  // Lanes whose dims share a token's group.
  const int lanes = p.key_group < 64 ? p.key_group / 2 : 32;
#pragma unroll kAtOnce
  for (int s = 0; s < S; ++s) {
    KvRange2 range;
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(from + static_cast<long long>(32 * s + i) * b.row);
      if constexpr (BY_TOKEN) {
        // A lane keeps the range of token 8 s + lane % 8.
        KvRange2 pair;
        pair.add(x);
        uint32_t both = pair.of_both();
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2)
          if (mask < lanes) both = min_nan_f16x2(both, __shfl_xor_sync(0xffffffffu, both, mask));
        if (i == 0 || (lane & 7) == i) mine = both;
      } else {
        range.add(x);
      }
    }
    if constexpr (!BY_TOKEN) of_channels[(s * 4 + warp) * 32 + lane] = make_uint2(range.low, range.high);
    // Of 128 dims both parts have some; of fewer, lanes of other groups have other ranges, and each reads what it
    // wrote.
    else if (p.key_group == 128 && lane < 8) *of_token(part, s) = mine;
    else if (p.key_group != 128 && lane % lanes < 8) of_token(part, s)[lane / lanes * 2 * S * 4 * 8] = mine;
  }
  __syncthreads();
  unsigned char* words = a.keys + b.page * p.keys_page + static_cast<long long>(b.token / R + 8 * warp) * p.key_row +
                         static_cast<long long>(b.head) * p.key_head + 2 * d;
  unsigned char* const numbers =
      a.key_numbers + b.page * p.key_numbers_page + static_cast<long long>(b.head) * p.key_number_head;
  uint32_t word[8];
  KvPackGroup low{}, high{};
#pragma unroll 1
  for (int s = 0; s < S; ++s) {
    uint32_t x[8], unsure = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = *reinterpret_cast<const uint32_t*>(from + static_cast<long long>(32 * s + i) * b.row);
    const int place = BITS * (s % R);
    if (place == 0)
#pragma unroll
      for (int i = 0; i < 8; ++i) word[i] = 0 - pack_excess<BITS>(0, R);
    if constexpr (BY_TOKEN) {
      const int group = d >> shift, own = 32 * s + 8 * warp + (lane & 7), t = b.token + own;
      uint32_t range = p.key_group == 128 ? min_nan_f16x2(*of_token(0, s), *of_token(1, s))
                                          : of_token(part, s)[lane / lanes * 2 * S * 4 * 8];
      range = pack_first_zero(range, p.key_group, [&](int i) {
        return static_cast<uint32_t>(b.from[static_cast<long long>(own) * b.row + (group << shift) + i]);
      });
      const KvPackGroup g = pack_group<BITS>(a, range);
      // Of the lanes that know a token one of its group's stores.
      if (lane % lanes < 8 && (dim & (p.key_group - 1)) == 0) {
        unsigned short* const to = reinterpret_cast<unsigned short*>(
                                       numbers + static_cast<long long>(group) * p.key_number_row + (t & -p.run) * 4) +
                                   (t & (p.run - 1));
        to[0] = g.scale_bits, to[p.run] = g.zero_bits;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int source = (lane & ~7) | i;
        KvPackGroup of;
        of.scale = __shfl_sync(0xffffffffu, g.scale, source), of.zero = __shfl_sync(0xffffffffu, g.zero, source);
        of.below = __shfl_sync(0xffffffffu, g.below, source), of.above = __shfl_sync(0xffffffffu, g.above, source);
        unsure = 0;
        pack_likely_pair(word[i], x[i], of, of, place, unsure);
        if (unsure)
          word[i] += pack_correction<BITS>(from + static_cast<long long>(32 * s + i) * b.row, of, of) << place;
      }
    } else {
      const int together = p.key_group / 32;  // 1, 2 or 4
      if ((s & (together - 1)) == 0) {
        KvRange2 range;
#pragma unroll 1
        for (int n = 0; n < 4 * together; ++n) {
          const uint2 found = of_channels[(s * 4 + n) * 32 + lane];
          range.low = min_nan_f16x2(range.low, found.x), range.high = min_nan_f16x2(range.high, found.y);
        }
        const auto at = [&](int c) {
          return [&, c](int i) {
            return static_cast<uint32_t>(b.from[static_cast<long long>(32 * s + i) * b.row + d + c]);
          };
        };
        low = pack_group<BITS>(a, pack_first_zero(range.of_low(), p.key_group, at(0))),
        high = pack_group<BITS>(a, pack_first_zero(range.of_high(), p.key_group, at(1)));
        if (warp == (s & 3))
          *reinterpret_cast<uint2*>(numbers + static_cast<long long>((b.token + 32 * s) >> shift) * p.key_number_row +
                                    4 * d) = make_uint2(low.scale_bits | static_cast<uint32_t>(high.scale_bits) << 16,
                                                        low.zero_bits | static_cast<uint32_t>(high.zero_bits) << 16);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) pack_likely_pair(word[i], x[i], low, high, place, unsure);
      if (unsure)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          word[i] += pack_correction<BITS>(from + static_cast<long long>(32 * s + i) * b.row, low, high) << place;
    }
    if (s % R == R - 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) *reinterpret_cast<uint32_t*>(words + static_cast<long long>(i) * p.key_row) = word[i];
      words += 32ll * p.key_row;
    }
  }
}

}  // namespace lpq::cuda
