// Keys of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_pack/groups.cuh"

namespace lpq::cuda {

// Keys of S times 32 tokens and of 64 dims from `dim` on (part `part` of `parts`), for W warps: (lane, warp, [s][i]) ->
// dims 2 lane and the next, token 32 s + 32 / W warp + i. Keys stay in registers: threads find ranges, leave them in
// shared memory, make groups of them, a thread another group, and take those that they need for their codes.
template <int BITS, int S, int W, bool BY_TOKEN, class Block>
__device__ __forceinline__ void pack_keys(const KvPackArgs& a, const Block& b, int dim, int part, int parts) {
  constexpr int R = 16 / BITS, I = 32 / W;
  const KvDecodeArgs& p = a.places;
  const int thread = static_cast<int>(threadIdx.x) - 32 * W * part, lane = thread & 31, warp = thread >> 5,
            d = dim + 2 * lane, shift = 31 - __clz(p.key_group);
  const unsigned short* const from = b.at(I * warp, d);
  const bool there = b.has(d);
  uint32_t x[S][I];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < I; ++i) x[s][i] = there ? *reinterpret_cast<const uint32_t*>(from + (32 * s + i) * b.row) : 0;
  unsigned char* const numbers =
      a.key_numbers + b.page * p.key_numbers_page + static_cast<long long>(b.head) * p.key_number_head;
  const uint32_t shared = shared_address(dynamic_shared());
  uint32_t groups;                                       // as they are handed over
  const int together = BY_TOKEN ? 1 : p.key_group / 32;  // 1, 2 or 4 thirties-two of tokens share a group
  if constexpr (BY_TOKEN) {
    // Ranges [16 or 32 lanes' dims][tokens], groups [group][tokens].
    const uint32_t ranges = shared;
    const int lines = p.key_group < 64 ? 2 * parts : parts, count = p.key_group == 128 ? 1 : lines;
    groups = shared + static_cast<uint32_t>(lines * 32 * S * 4);
#pragma unroll
    for (int s = 0; s < S; ++s) {
      uint32_t range[I];
#pragma unroll
      for (int i = 0; i < I; ++i) {
        KvRange2 pair;
        pair.add(x[s][i]);
        range[i] = pair.of_both();
      }
      const int own = pack_scatter<I, 16>(range);
      if (p.key_group >= 64) range[0] = min_nan_f16x2(range[0], __shfl_xor_sync(0xffffffffu, range[0], 16));
      const int line = p.key_group < 64 ? 2 * part + (lane >> 4) : part;
      if ((lane & (16 / I - 1)) == 0 && (lane < 16 || p.key_group < 64))
        st_shared(ranges + static_cast<uint32_t>((line * 32 * S + 32 * s + I * warp + own) * 4), range[0]);
    }
    __syncthreads();
    const int first_group = (dim - 64 * part) >> shift;
    for (int n = static_cast<int>(threadIdx.x); n < 32 * S * count; n += 32 * W * parts) {
      const int token = n % (32 * S), group = n / (32 * S), t = b.token + token;
      uint32_t range = ld_shared(ranges + static_cast<uint32_t>((group * 32 * S + token) * 4));
      if (count < lines) range = min_nan_f16x2(range, ld_shared(ranges + static_cast<uint32_t>((32 * S + token) * 4)));
      range = pack_first_zero(range, p.key_group,
                              [&](int i) { return b.half(token, ((first_group + group) << shift) + i); });
      const KvPackGroup g = pack_group<BITS>(a, range);
      pack_give(groups + static_cast<uint32_t>(n * 16), g);
      unsigned short* const to =
          reinterpret_cast<unsigned short*>(numbers + static_cast<long long>(first_group + group) * p.key_number_row +
                                            (t & -p.run) * 4) +
          (t & (p.run - 1));
      to[0] = g.scale_bits, to[p.run] = g.zero_bits;
    }
    groups += static_cast<uint32_t>(((d >> shift) - first_group) * 32 * S + I * warp) * 16;
  } else {
    // Ranges [group][warp][lane]{of both dims: smallest, largest}, groups [group][dim], of a part.
    const int count = S / together;
    const uint32_t ranges = shared + static_cast<uint32_t>(part * count * (W * 32 * 8 + 64 * 16));
    groups = ranges + static_cast<uint32_t>(count * W * 32 * 8);
    KvRange2 range;
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int i = 0; i < I; ++i) range.add(x[s][i]);
      if ((s & (together - 1)) == together - 1) {
        st_shared_v2(ranges + static_cast<uint32_t>(((s / together * W + warp) * 32 + lane) * 8), range.low,
                     range.high);
        range = KvRange2();
      }
    }
    __syncthreads();
    for (int n = thread; n < 64 * count; n += 32 * W) {
      const int group = n >> 6, c = n & 63;
      KvRange2 all;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const uint2 found = ld_shared_v2(ranges + static_cast<uint32_t>(((group * W + w) * 32 + (c >> 1)) * 8));
        all.low = min_nan_f16x2(all.low, found.x), all.high = max_nan_f16x2(all.high, found.y);
      }
      const uint32_t smallest = pack_first_zero(c & 1 ? all.of_high() : all.of_low(), p.key_group,
                                                [&](int i) { return b.half(32 * together * group + i, dim + c); });
      const KvPackGroup g = pack_group<BITS>(a, smallest);
      pack_give(groups + static_cast<uint32_t>(n * 16), g);
      unsigned short* const to = reinterpret_cast<unsigned short*>(
          numbers + static_cast<long long>((b.token >> shift) + group) * p.key_number_row + 4 * ((dim + c) & ~1) +
          2 * (c & 1));
      to[0] = g.scale_bits, to[2] = g.zero_bits;
    }
    groups += static_cast<uint32_t>(2 * lane * 16);
  }
  __syncthreads();
  unsigned char* words = a.keys + b.page * p.keys_page + static_cast<long long>(b.token / R + I * warp) * p.key_row +
                         static_cast<long long>(b.head) * p.key_head + 2 * d;
  uint32_t word[I];
  KvPackTaken low(groups), high(groups + 16);
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int place = BITS * (s % R);
    if (place == 0)
#pragma unroll
      for (int i = 0; i < I; ++i) word[i] = 0 - pack_excess<BITS>(0, R);
    if constexpr (!BY_TOKEN)
      if (s > 0 && (s & (together - 1)) == 0)
        low = KvPackTaken(groups + static_cast<uint32_t>(s / together * 64 * 16)), high = KvPackTaken(low.from + 16);
    uint32_t unsure = 0;
#pragma unroll
    for (int i = 0; i < I; ++i) {
      if constexpr (BY_TOKEN) {
        low = KvPackTaken(groups + static_cast<uint32_t>((32 * s + i) * 16));
        unsure = 0;
        pack_likely_pair(word[i], x[s][i], low, low, place, unsure);
        if (unsure) word[i] += pack_correction<BITS>(x[s][i], low.whole(), low.whole()) << place;
      } else {
        pack_likely_pair(word[i], x[s][i], low, high, place, unsure);
      }
    }
    if (!BY_TOKEN && unsure)
#pragma unroll
      for (int i = 0; i < I; ++i) word[i] += pack_correction<BITS>(x[s][i], low.whole(), high.whole()) << place;
    if (s % R == R - 1) {
#pragma unroll
      for (int i = 0; i < I; ++i) *reinterpret_cast<uint32_t*>(words + i * p.key_row) = word[i];
      words += 32 * p.key_row;
    }
  }
}

}  // namespace lpq::cuda
