// Quantizes tokens and packs them: of a prompt, or of a tail that is full, in registers from load to store. The arithmetic is
// ops.kvQuantize's, to the bit: scale = f16(fl32((largest - zero) / top)), code = fl32((x - zero) / scale) to the nearest integer.
//
// A thread has the codes of the words that it stores. Keys: (lane, warp, reg) -> dims 2 lane and the next of 64, token 32 s + 8 (warp % 4) + i
// for s of the block's thirties-two and i of 8: words of R tokens that are 32 apart. Values: (lane, reg) -> words 2 (lane % L) and the next of
// a chunk, L = words / 2, token lane / L of several, j of a word's R dims. turbomind: a lane has 8 dims of a token.
#pragma once
#include "cuda/attention/kv_codes.cuh"

namespace lpq::cuda {

// Compiled once for all kernels that use it.
#ifdef LPQ_SIMT
#define LPQ_SHARED_CODE inline
#else
#define LPQ_SHARED_CODE __device__ __noinline__
#endif

// A block of tokens on its way to where it is packed: of one head.
struct KvPackBlock {
  const unsigned short* from;  // of the first token
  int row;                     // elements from token to token
  int page, token, head;
};

// Scale, its reciprocal and zero of a group.
struct KvPackGroup {
  float scale, inverse, zero;
  unsigned short scale_bits, zero_bits;
};

// `range`: the smallest, and the largest with its sign turned, as halves.
template <int BITS>
__device__ __forceinline__ KvPackGroup pack_group(const KvPackArgs& a, uint32_t range) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float low = low_half(range), high = -high_half(range);
  if (!(fabsf(low) < INFINITY && fabsf(high) < INFINITY)) *a.fault = 1;
  KvPackGroup g;
  g.scale_bits = half_bits(quotient(high - low, top)), g.zero_bits = static_cast<unsigned short>(range);
  g.scale = half_of(g.scale_bits), g.inverse = g.scale > 0 ? reciprocal(g.scale) : 0.0f, g.zero = low;
  return g;
}
// A smallest of 0 keeps the sign of the first 0 of its group.
template <class F>
__device__ __forceinline__ uint32_t pack_first_zero(uint32_t range, int count, F&& at) {
  if ((range & 0x7fff) != 0) return range;
  for (int i = 0; i < count; ++i)
    if ((at(i) & 0x7fff) == 0) return (range & ~0xffffu) | at(i);
  return range;
}

// (x - zero) / scale to the nearest integer, ties to even, at most top, as bits of 3 * 2^22 and it. The product with the reciprocal errs by
// 2^-22 of up to 255. Near a half h, h times scale decides, which is exact (9 bits by 11): the quotient in fp32 is h only where
// both are alike, since two numbers of fp32 differ by more than half a unit of the last place.
constexpr float kPackMagic = 12582912.0f;
constexpr uint32_t kPackBits = 0x4b400000u;
template <int BITS>
__device__ __forceinline__ uint32_t pack_code(float x, const KvPackGroup& g) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float above = x - g.zero;
  float t = fused(above, g.inverse, kPackMagic);
  const float over = fused(above, g.inverse, kPackMagic - t);
  if (fabsf(over) > 0.4999f) {
    const float half = t - kPackMagic + (over > 0 ? 0.5f : -0.5f), at = half * g.scale;
    t = kPackMagic + (above > at ? half + 0.5f : above < at ? half - 0.5f : half);
  }
  return float_bits(fminf(t, kPackMagic + top));
}
template <int BITS>
__device__ __forceinline__ void pack_pair(uint32_t& word, uint32_t x, const KvPackGroup& low, const KvPackGroup& high, int place) {
  word += (pack_code<BITS>(low_half(x), low) - kPackBits) << place;
  word += (pack_code<BITS>(high_half(x), high) - kPackBits) << (place + 16);
}

// Smallest and turned largest of the two halves of x each, of what was found so far.
struct KvRange2 {
  uint32_t low = 0x7c007c00u, high = 0x7c007c00u;
  __device__ __forceinline__ void add(uint32_t x) { low = half2_min(low, x), high = half2_min(high, x ^ 0x80008000u); }
  __device__ __forceinline__ uint32_t of_low() const { return (low & 0xffffu) | high << 16; }
  __device__ __forceinline__ uint32_t of_high() const { return low >> 16 | (high & 0xffff0000u); }
  __device__ __forceinline__ uint32_t of_both() const { return half2_min(of_low(), of_high()); }
};

// Keys of S times 32 tokens and of 64 dims from `dim` on, for four warps.
template <int BITS, int S, bool BY_TOKEN>
LPQ_SHARED_CODE void pack_keys(const KvPackArgs& a, const KvPackBlock b, int dim, int part) {
  constexpr int R = 16 / BITS;
  const KvDecodeArgs& p = a.places;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) & 3, d = dim + 2 * lane;
  uint2* const shared = reinterpret_cast<uint2*>(attention_shared()) + part * S * 4 * 32;  // [S][4][32]
  const unsigned short* const from = b.from + static_cast<long long>(8 * warp) * b.row + d;
  uint32_t x[S][8];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < 8; ++i) x[s][i] = *reinterpret_cast<const uint32_t*>(from + static_cast<long long>(32 * s + i) * b.row);
  unsigned char* const words = a.keys + b.page * p.keys_page + static_cast<long long>(b.token / R + 8 * warp) * p.key_row + static_cast<long long>(b.head) * p.key_head + 2 * d;
  unsigned char* const numbers = a.key_numbers + b.page * p.key_numbers_page + static_cast<long long>(b.head) * p.key_number_head;
  uint32_t word[8];
  if constexpr (BY_TOKEN) {
    // Ranges of tokens: over the lanes of a group, and where it has 128 dims, both parts. A lane works out the numbers of token 8 s + lane % 8.
    const int lanes = p.key_group / 2 < 32 ? p.key_group / 2 : 32, group = d / p.key_group;
    uint32_t mine[S];
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t range = half2_min((x[s][i] & 0xffffu) | (x[s][i] ^ 0x8000u) << 16, x[s][i] >> 16 | ((x[s][i] ^ 0x80000000u) & 0xffff0000u));
        for (int mask = 1; mask < lanes; mask *= 2) range = half2_min(range, __shfl_xor_sync(0xffffffffu, range, mask));
        if (i == 0 || (lane & 7) == i) mine[s] = range;
      }
    if (p.key_group == 128) {
#pragma unroll
      for (int s = 0; s < S; ++s) reinterpret_cast<uint32_t*>(attention_shared())[((part * S + s) * 4 + warp) * 8 + (lane & 7)] = mine[s];
      __syncthreads();
#pragma unroll
      for (int s = 0; s < S; ++s) mine[s] = half2_min(mine[s], reinterpret_cast<uint32_t*>(attention_shared())[(((part ^ 1) * S + s) * 4 + warp) * 8 + (lane & 7)]);
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int own = 32 * s + 8 * warp + (lane & 7), t = b.token + own;
      const uint32_t range = pack_first_zero(mine[s], p.key_group, [&](int i) { return static_cast<uint32_t>(b.from[static_cast<long long>(own) * b.row + group * p.key_group + i]); });
      const KvPackGroup g = pack_group<BITS>(a, range);
      // Of the lanes that know a token one of its group's stores.
      if (lane % lanes < 8 && dim % p.key_group == 0) {
        unsigned short* const to = reinterpret_cast<unsigned short*>(numbers + static_cast<long long>(group) * p.key_number_row + (t & -p.run) * 4) + (t & (p.run - 1));
        to[0] = g.scale_bits, to[p.run] = g.zero_bits;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (s % R == 0) word[i] = 0;
        const int source = (lane & ~7) | i;
        KvPackGroup of;
        of.scale = __shfl_sync(0xffffffffu, g.scale, source), of.inverse = __shfl_sync(0xffffffffu, g.inverse, source), of.zero = __shfl_sync(0xffffffffu, g.zero, source);
        pack_pair<BITS>(word[i], x[s][i], of, of, BITS * (s % R));
        if (s % R == R - 1) *reinterpret_cast<uint32_t*>(words + static_cast<long long>(s / R * 32 + i) * p.key_row) = word[i];
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < S; ++s) {
      KvRange2 range;
#pragma unroll
      for (int i = 0; i < 8; ++i) range.add(x[s][i]);
      shared[(s * 4 + warp) * 32 + lane] = make_uint2(range.low, range.high);
    }
    __syncthreads();
    KvPackGroup low{}, high{};
    const int together = p.key_group / 32;  // a power of two
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if ((s & (together - 1)) == 0) {
        KvRange2 range;
        for (int n = 0; n < 4 * together; ++n) {
          const uint2 found = shared[(s * 4 + n) * 32 + lane];
          range.low = half2_min(range.low, found.x), range.high = half2_min(range.high, found.y);
        }
        const auto at = [&](int c) { return [&, c](int i) { return static_cast<uint32_t>(b.from[static_cast<long long>(32 * s + i) * b.row + d + c]); }; };
        low = pack_group<BITS>(a, pack_first_zero(range.of_low(), p.key_group, at(0))), high = pack_group<BITS>(a, pack_first_zero(range.of_high(), p.key_group, at(1)));
        if (warp == (s & 3))
          *reinterpret_cast<uint2*>(numbers + static_cast<long long>((b.token + 32 * s) / p.key_group) * p.key_number_row + 4 * d) =
              make_uint2(low.scale_bits | static_cast<uint32_t>(high.scale_bits) << 16, low.zero_bits | static_cast<uint32_t>(high.zero_bits) << 16);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (s % R == 0) word[i] = 0;
        pack_pair<BITS>(word[i], x[s][i], low, high, BITS * (s % R));
        if (s % R == R - 1) *reinterpret_cast<uint32_t*>(words + static_cast<long long>(s / R * 32 + i) * p.key_row) = word[i];
      }
    }
  }
}

// Values of `tokens` tokens and of a chunk of CHUNK dims from `dim` on, for `warps` warps of which this is number `warp`.
template <int BITS, int CHUNK>
LPQ_SHARED_CODE void pack_values(const KvPackArgs& a, const KvPackBlock b, int dim, int tokens, int warp, int warps) {
  constexpr int R = 16 / BITS, in_chunk = CHUNK / R, lanes = in_chunk / 2, at_once = 32 / lanes, U = 2;
  static_assert(lanes >= 1 && lanes <= 32);
  const KvDecodeArgs& p = a.places;
  const int lane = static_cast<int>(threadIdx.x & 31), group = p.value_group;
  const int across = group / 2 < lanes ? group / 2 : lanes, deep = group < in_chunk ? 1 : group / in_chunk;  // lanes, and codes of a word, that share a group
  const unsigned short* const from = b.from + dim + 2 * (lane % lanes);
#pragma unroll 1
  for (int first = warp * at_once * U; first < tokens; first += warps * at_once * U) {
    uint32_t x[U][R];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int own = first + u * at_once + lane / lanes;
#pragma unroll
      for (int j = 0; j < R; ++j) x[u][j] = *reinterpret_cast<const uint32_t*>(from + static_cast<long long>(own < tokens ? own : 0) * b.row + j * in_chunk);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int own = first + u * at_once + lane / lanes, t = b.token + own;
      uint32_t range[R], word = 0;
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
          for (int j = 0; j < R; j += 2 * apart) range[j] = half2_min(range[j], range[j + apart]);
      KvPackGroup g{};
#pragma unroll
      for (int j = 0; j < R; ++j) {
        if ((j & (deep - 1)) == 0) {
          for (int mask = 1; mask < across; mask *= 2) range[j] = half2_min(range[j], __shfl_xor_sync(0xffffffffu, range[j], mask));
          const int d = dim + j * in_chunk + 2 * (lane % lanes / across * across);  // of the group's first
          const uint32_t found = pack_first_zero(range[j], group, [&](int i) { return static_cast<uint32_t>(b.from[static_cast<long long>(own < tokens ? own : 0) * b.row + d / group * group + i]); });
          g = pack_group<BITS>(a, found);
          if (own < tokens && lane % across == 0) {
            unsigned short* const to = reinterpret_cast<unsigned short*>(a.value_numbers + b.page * p.value_numbers_page + static_cast<long long>(d / group) * p.value_number_group +
                                                                         static_cast<long long>(b.head) * p.value_number_head + (t & -p.run) * 4) + (t & (p.run - 1));
            to[0] = g.scale_bits, to[p.run] = g.zero_bits;
          }
        }
        pack_pair<BITS>(word, x[u][j], g, g, BITS * j);
      }
      if (own < tokens)
        *reinterpret_cast<uint32_t*>(a.values + b.page * p.values_page + static_cast<long long>(t) * p.value_row + static_cast<long long>(b.head) * p.value_head + (dim / R + 2 * (lane % lanes)) * 2) = word;
    }
  }
}

// turbomind: a token of a head at once, eight dims a lane, in the order 75316420 of 4 bits.
template <int BITS>
LPQ_SHARED_CODE void pack_words(const KvPackArgs& a, const unsigned short* from, unsigned char* to, unsigned char* number, int dims, bool there) {
  const int lanes = dims / 8, own = static_cast<int>(threadIdx.x & 31) % lanes;
  const uint4 x = *reinterpret_cast<const uint4*>(from + 8 * own);
  KvRange2 found;
  found.add(x.x), found.add(x.y), found.add(x.z), found.add(x.w);
  uint32_t range = found.of_both();
  for (int mask = 1; mask < lanes; mask *= 2) range = half2_min(range, __shfl_xor_sync(0xffffffffu, range, mask));
  const KvPackGroup g = pack_group<BITS>(a, pack_first_zero(range, dims, [&](int i) { return static_cast<uint32_t>(from[i]); }));
  if (!there) return;
  if (own == 0) *reinterpret_cast<uint32_t*>(number) = g.scale_bits | static_cast<uint32_t>(g.zero_bits) << 16;
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
  if constexpr (BITS == 4) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) pack_pair<BITS>(word, pairs[i], g, g, 4 * i);
    *reinterpret_cast<uint32_t*>(to + 4 * own) = word;
  } else {
    uint2 word = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t& half = i < 2 ? word.x : word.y;
      half += (pack_code<BITS>(low_half(pairs[i]), g) - kPackBits) << (16 * (i & 1)), half += (pack_code<BITS>(high_half(pairs[i]), g) - kPackBits) << (16 * (i & 1) + 8);
    }
    *reinterpret_cast<uint2*>(to + 8 * own) = word;
  }
}

// The page that holds token `t` of a sequence of `count` pages; one that is none is told.
__device__ __forceinline__ int pack_page(const KvPackArgs& a, const int* table, int count, int t) {
  const int index = t / a.places.page_tokens, page = static_cast<unsigned>(index) < static_cast<unsigned>(count) ? table[index] : -1;
  if (static_cast<unsigned>(page) < static_cast<unsigned>(a.places.pages)) return page;
  *a.fault_page = 1;
  return -1;
}

// A block of tokens of one head: keys or values of a chunk of dims.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM>
__device__ __forceinline__ void pack_block(const KvPackArgs& a, const KvPackBlock& b, bool value, int chunk) {
  const int warp = static_cast<int>(threadIdx.x >> 5);
  constexpr bool by_token = FORM == KvForm::kTokens;
  if (value) return pack_values<VALUES, CHUNK>(a, b, chunk * CHUNK, a.block, warp, CHUNK / 16);
  const int part = warp >> 2, dim = chunk * CHUNK + 64 * part;
  if constexpr (KEYS == 8 && VALUES == 8) {
    if (a.block == 64) return pack_keys<8, 2, by_token>(a, b, dim, part);
  }
  pack_keys<KEYS, KEYS == 2 ? 8 : 4, by_token>(a, b, dim, part);
}

// Blocks of threads: of a chunk of at most 128 dims, keys and values fastest, then chunks, heads, blocks of tokens or sequences to append
// to. turbomind: 64 tokens, or the one appended.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM>
__device__ __forceinline__ void kv_pack(const KvPackArgs& a) {
  const KvDecodeArgs& p = a.places;
  constexpr bool words = FORM == KvForm::kWords;
  const int chunks = words ? 1 : a.dims / CHUNK, thread = static_cast<int>(threadIdx.x);
  int index = static_cast<int>(blockIdx.x);
  const bool value = index & 1, append = a.lengths != nullptr;
  index >>= 1;
  const int chunk = index % chunks, head = index / chunks % p.kv_heads, number = index / chunks / p.kv_heads;
  const int* const table = append ? a.table + static_cast<long long>(number) * p.table_pages : a.table;
  const unsigned short* const given = value ? a.v : a.k;
  const int length = append ? a.lengths[number] : 0, tail = append && !words ? a.tails[number] : 0;
  if (append && (length < 0 || (!words && length % a.block != 0) || tail < 0 || tail > a.residual)) {
    if (thread == 0) *a.fault_page = 1;
    return;
  }
  if constexpr (words) {
    const int lanes = a.dims / 8, at_once = static_cast<int>(blockDim.x) / lanes, first = append ? length : a.first + 64 * number, count = append ? 1 : a.tokens - 64 * number < 64 ? a.tokens - 64 * number : 64;
    for (int i = thread / lanes; i - thread / lanes < count; i += at_once) {
      const int own = i < count ? i : 0, page = pack_page(a, table, p.table_pages, first + own), in_page = (first + own) % p.page_tokens;
      const unsigned short* const from = given + (static_cast<long long>(append ? number : 64 * number + own) * p.kv_heads + head) * a.dims;
      const long long at = page < 0 ? 0 : page;
      unsigned char* const number_to = (value ? a.value_numbers : a.key_numbers) + at * p.keys_page + static_cast<long long>(head) * p.key_number_head + 4 * in_page;
      unsigned char* const to = (value ? a.values : a.keys) + at * p.keys_page + static_cast<long long>(head) * p.key_head + static_cast<long long>(in_page) * (value ? p.value_row : p.key_row);
      if (value) pack_words<VALUES>(a, from, to, number_to, a.dims, i < count && page >= 0);
      else pack_words<KEYS>(a, from, to, number_to, a.dims, i < count && page >= 0);
    }
  } else if (!append) {
    const int t = a.first + number * a.block, page = pack_page(a, table, p.table_pages, t), row = p.kv_heads * a.dims;
    if (page >= 0)
      pack_block<KEYS, VALUES, CHUNK, FORM>(a, {given + static_cast<long long>(number) * a.block * row + head * a.dims, row, page, t % p.page_tokens, head}, value, chunk);
  } else {
    const int row = p.kv_heads * a.dims;
    unsigned short* const kept = (value ? a.tail_values : a.tail_keys) + static_cast<long long>(number) * p.room * row + head * a.dims;
    if (tail == a.residual)
      for (int done = 0; done < a.residual; done += a.block) {
        const int page = pack_page(a, table, p.table_pages, length + done);
        if (page < 0) break;
        if (done) __syncthreads();
        pack_block<KEYS, VALUES, CHUNK, FORM>(a, {kept + static_cast<long long>(done) * row, row, page, (length + done) % p.page_tokens, head}, value, chunk);
      }
    __syncthreads();  // the tail has been read
    if (thread < CHUNK / 8)
      *reinterpret_cast<uint4*>(kept + static_cast<long long>(tail == a.residual ? 0 : tail) * row + chunk * CHUNK + 8 * thread) =
          *reinterpret_cast<const uint4*>(given + static_cast<long long>(number) * row + head * a.dims + chunk * CHUNK + 8 * thread);
  }
  if (!append) return;
  // All of a sequence's blocks have read how long it is before the last writes it.
  __syncthreads();
  if (thread != 0 || count_up(a.counters + number) != static_cast<unsigned>(2 * chunks * p.kv_heads - 1)) return;
  a.counters[number] = 0;
  if constexpr (words) {
    a.lengths[number] = length + 1;
  } else {
    if (tail == a.residual) a.lengths[number] = length + a.residual;
    a.tails[number] = tail == a.residual ? 1 : tail + 1;
  }
}

#define LPQ_KV_PACK(keys, values, chunk, form, name)                                                                                     \
  extern "C" __global__ void __launch_bounds__(2 * chunk, (keys == 2 ? 2 : 3) * 128 / chunk) lpq_kv_pack_##name##_##chunk(const __grid_constant__ lpq::cuda::KvPackArgs a) { \
    lpq::cuda::kv_pack<keys, values, chunk, lpq::cuda::KvForm::form>(a);                                                                  \
  }

}  // namespace lpq::cuda
