// Values of kv_pack.cuh.
#pragma once
#include "cuda/attention/kv_pack/groups.cuh"

namespace lpq::cuda {

// Values of `tokens` tokens and of a chunk of CHUNK dims from `dim` on, in groups of GROUP, for `warps` warps of which
// this is number `warp`. (lane, [u][j]) -> token first + u 32 / L + lane / L, dims 2 (lane % L) + j CHUNK / R and the
// next, L = CHUNK / 2R. Ranges are brought together lane by lane for another token or group, whose numbers that lane
// makes and leaves in shared memory for those that code.
template <int BITS, int CHUNK, int GROUP, class Block>
__device__ __forceinline__ void pack_values(const KvPackArgs& a, const Block& b, int dim, int tokens, int warp,
                                            int warps) {
  constexpr int R = 16 / BITS, kInChunk = CHUNK / R, kLanes = kInChunk / 2, kAtOnce = 32 / kLanes;
  // Lanes, and codes of a word, that share a group; groups of a lane's word and of a token.
  constexpr int kAcross = GROUP / 2 >= kLanes ? kLanes : GROUP / 2, kDeep = GROUP < kInChunk ? 1 : GROUP / kInChunk,
                kGroups = R / kDeep, kOfToken = CHUNK / GROUP;
  constexpr int U = BITS == 8 ? 4 : 16 / R, V = U * kGroups, kOwn = V > kAcross ? V / kAcross : 1;
  static_assert(kLanes >= 1 && kLanes <= 32 && kDeep <= R && kAtOnce * U * kOfToken * 16 <= 512);
  const KvDecodeArgs& p = a.places;
  const int lane = static_cast<int>(threadIdx.x & 31), across_word = lane % kLanes, row = lane / kLanes;
  unsigned char* const words = a.values + b.page * p.values_page + static_cast<long long>(b.head) * p.value_head +
                               (dim / R + 2 * across_word) * 2;
  unsigned char* const numbers =
      a.value_numbers + b.page * p.value_numbers_page + static_cast<long long>(b.head) * p.value_number_head;
  const uint32_t groups = shared_address(dynamic_shared()) + static_cast<uint32_t>(warp * 512);
  const auto of_token = [&](int k) { return (k * kDeep * kInChunk + 2 * across_word) / GROUP; };
#pragma unroll 1
  for (int first = warp * kAtOnce * U; first < tokens; first += warps * kAtOnce * U) {
    const unsigned short* const from = b.at(first + row, dim + 2 * across_word);
    uint32_t x[U][R], range[V];
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int j = 0; j < R; ++j)
        x[u][j] = b.has(dim + 2 * across_word + j * kInChunk)
                      ? *reinterpret_cast<const uint32_t*>(from + u * kAtOnce * b.row + j * kInChunk)
                      : 0;
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        KvRange2 found;
#pragma unroll
        for (int j = 0; j < kDeep; ++j) found.add(x[u][k * kDeep + j]);
        range[u * kGroups + k] = found.of_both();
      }
    const int own = pack_scatter<V, kAcross>(range);
    __syncwarp();  // groups of the tokens before have been taken
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int u = (own + n) / kGroups, group = of_token((own + n) % kGroups), token = u * kAtOnce + row,
                t = b.token + first + token, of_head = dim / GROUP + group;
      const uint32_t found =
          pack_first_zero(range[n], GROUP, [&](int i) { return b.half(first + token, of_head * GROUP + i); });
      const KvPackGroup g = pack_group<BITS>(a, found);
      if (V >= kAcross || (lane & (kAcross / V - 1)) == 0) {
        pack_give(groups + static_cast<uint32_t>((token * kOfToken + group) * 16), g);
        unsigned short* const to =
            reinterpret_cast<unsigned short*>(numbers + static_cast<long long>(of_head) * p.value_number_group +
                                              (t & -p.run) * 4) +
            (t & (p.run - 1));
        to[0] = g.scale_bits, to[p.run] = g.zero_bits;
      }
    }
    __syncwarp();
#pragma unroll
    for (int u = 0; u < U; ++u) {
      uint32_t word = 0 - pack_excess<BITS>(0, R);
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        const KvPackTaken g(groups + static_cast<uint32_t>(((u * kAtOnce + row) * kOfToken + of_token(k)) * 16));
        uint32_t unsure = 0;
#pragma unroll
        for (int j = k * kDeep; j < (k + 1) * kDeep; ++j) pack_likely_pair(word, x[u][j], g, g, BITS * j, unsure);
        if (unsure)
#pragma unroll
          for (int j = k * kDeep; j < (k + 1) * kDeep; ++j)
            word += pack_correction<BITS>(x[u][j], g.whole(), g.whole()) << BITS * j;
      }
      *reinterpret_cast<uint32_t*>(words + static_cast<long long>(b.token + first + u * kAtOnce + row) * p.value_row) =
          word;
    }
  }
}
template <int BITS, int CHUNK, class Block>
__device__ __forceinline__ void pack_values(const KvPackArgs& a, const Block& b, int dim, int tokens, int warp,
                                            int warps) {
  const int group = a.places.value_group;
  if (CHUNK == 128 && group == 128) pack_values<BITS, CHUNK, CHUNK>(a, b, dim, tokens, warp, warps);
  else if (group == 64) pack_values<BITS, CHUNK, 64>(a, b, dim, tokens, warp, warps);
  else pack_values<BITS, CHUNK, 32>(a, b, dim, tokens, warp, warps);
}

}  // namespace lpq::cuda
