// Values of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_pack/groups.cuh"

namespace lpq::cuda {

// Values of `tokens` tokens and of a chunk of CHUNK dims from `dim` on, for `warps` warps of which this is number
// `warp`. Groups are powers of two.
template <int BITS, int CHUNK>
__device__ __forceinline__ void pack_values(const KvPackArgs& a, const KvPackBlock& b, int dim, int tokens, int warp,
                                            int warps) {
  constexpr int R = 16 / BITS, in_chunk = CHUNK / R, lanes = in_chunk / 2, at_once = 32 / lanes, U = BITS == 2 ? 1 : 2;
  static_assert(lanes >= 1 && lanes <= 32);
  const KvDecodeArgs& p = a.places;
  const int lane = static_cast<int>(threadIdx.x & 31), group = p.value_group, shift = 31 - __clz(group),
            across_word = lane % lanes;
  // Lanes, and codes of a word, that share a group.
  const int across = lanes <= 16 || group / 2 >= lanes ? lanes : group / 2,
            deep = group < in_chunk ? 1 : group / in_chunk;
  const unsigned short* const from = b.from + dim + 2 * across_word;
  unsigned char* const words = a.values + b.page * p.values_page + static_cast<long long>(b.head) * p.value_head +
                               (dim / R + 2 * across_word) * 2;
  unsigned char* const numbers =
      a.value_numbers + b.page * p.value_numbers_page + static_cast<long long>(b.head) * p.value_number_head;
#pragma unroll 1
  for (int first = warp * at_once * U; first < tokens; first += warps * at_once * U) {
    uint32_t x[U][R];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int own = first + u * at_once + lane / lanes;
      const unsigned short* const row = from + static_cast<long long>(own < tokens ? own : 0) * b.row;
#pragma unroll
      for (int j = 0; j < R; ++j) x[u][j] = *reinterpret_cast<const uint32_t*>(row + j * in_chunk);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int own = first + u * at_once + lane / lanes, t = b.token + own;
      uint32_t range[R], word = 0 - pack_excess<BITS>(0, R);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        KvRange2 pair;
        pair.add(x[u][j]);
        range[j] = pair.of_both();
      }
      // Ranges of groups of several codes of a word end up with the first.
#pragma unroll
      for (int apart = 1; apart < R; apart *= 2)
        if (apart < deep)
#pragma unroll
          for (int j = 0; j < R; j += 2 * apart) range[j] = min_nan_f16x2(range[j], range[j + apart]);
      KvPackGroup g{};
      uint32_t unsure = 0;
      const auto corrected = [&](int j) {
        return pack_correction<BITS>(from + static_cast<long long>(own < tokens ? own : 0) * b.row + j * in_chunk, g, g)
               << BITS * j;
      };
#pragma unroll
      for (int j = 0; j < R; ++j) {
        if ((j & (deep - 1)) == 0) {
#pragma unroll
          for (int mask = 1; mask < lanes; mask *= 2)
            if (mask < across) range[j] = min_nan_f16x2(range[j], __shfl_xor_sync(0xffffffffu, range[j], mask));
          const int of_group = (dim + j * in_chunk + 2 * across_word) >> shift;
          const uint32_t found = pack_first_zero(range[j], group, [&](int i) {
            return static_cast<uint32_t>(
                b.from[static_cast<long long>(own < tokens ? own : 0) * b.row + (of_group << shift) + i]);
          });
          g = pack_group<BITS>(a, found);
          if (own < tokens && (lane & (across - 1)) == 0) {
            unsigned short* const to =
                reinterpret_cast<unsigned short*>(numbers + static_cast<long long>(of_group) * p.value_number_group +
                                                  (t & -p.run) * 4) +
                (t & (p.run - 1));
            to[0] = g.scale_bits, to[p.run] = g.zero_bits;
          }
        }
        pack_likely_pair(word, x[u][j], g, g, BITS * j, unsure);
        if (deep < R) {
          if (unsure) word += corrected(j);
          unsure = 0;
        }
      }
      // A word of one group is looked at once.
      if (unsure)
#pragma unroll 1
        for (int j = 0; j < R; ++j) word += corrected(j);
      if (own < tokens) *reinterpret_cast<uint32_t*>(words + static_cast<long long>(t) * p.value_row) = word;
    }
  }
}

}  // namespace lpq::cuda
