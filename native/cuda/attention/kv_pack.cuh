// Quantizes tokens and packs them: of a prompt, or of a tail that is full. The arithmetic is ops.kvQuantize's,
// to the bit: scale = f16(fl32((largest - zero) / top)), code = fl32((x - zero) / scale) to the nearest integer.
//
// A thread has the codes of the words that it stores. Keys: (lane, warp, reg) -> dims 2 lane and the next of 64, token
// 32 s + 8 (warp % 4) + i for s of the block's thirties-two and i of 8: words of R tokens that are 32 apart. Values:
// (lane, reg) -> words 2 (lane % L) and the next of a chunk, L = words / 2, token lane / L of several, j of a word's R
// dims. turbomind: a lane has 8 dims of a token.
#pragma once
#include "cuda/attention/kv_codes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// A block of tokens on its way to where it is packed: of one head.
struct KvPackBlock {
  const unsigned short* from;  // of the first token
  int row;                     // elements from token to token
  int page, token, head;
};

// Scale and zero of a group; numbers a little below and a little above the scale's reciprocal.
struct KvPackGroup {
  float scale, below, above, zero;
  unsigned short scale_bits, zero_bits;
};

// `range`: the smallest, and the largest with its sign turned, as halves. rcp_approx() errs by 2^-23 of itself and the
// factors below by 2^-24, so that (x - zero) below <= fl32((x - zero) / scale) <= (x - zero) above. Scales among f16's
// subnormals may have been rounded so far down that codes go beyond the largest: these have no codes for certain but 0.
template <int BITS>
__device__ __forceinline__ KvPackGroup pack_group(const KvPackArgs& a, uint32_t range) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float low = low_half(range), high = -high_half(range);
  if (!(fabsf(low) < INFINITY && fabsf(high) < INFINITY)) *a.fault = 1;
  KvPackGroup g;
  g.scale_bits = from_float<false>(__fdiv_rn(high - low, top)), g.zero_bits = static_cast<unsigned short>(range);
  g.scale = to_float<false>(g.scale_bits), g.zero = low;
  const float inverse = g.scale > 0 ? rcp_approx(g.scale) : 0.0f;
  g.below = g.scale_bits < 0x0400 ? 0.0f : inverse * (1 - 0x1p-21f), g.above = inverse * (1 + 0x1p-21f);
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

// Codes are bits of 3 * 2^22 and them: adding that rounds to integers, ties to even.
constexpr float kPackMagic = 12582912.0f;
constexpr uint32_t kPackBits = 0x4b400000u;

// A code for certain, where products with both neighbours of the reciprocal round alike: then so does the quotient
// between them. Else a bit of `unsure`.
__device__ __forceinline__ uint32_t pack_likely(float x, const KvPackGroup& g, uint32_t& unsure) {
  const float over = x - g.zero;
  const uint32_t code = __float_as_uint(__fmaf_rn(over, g.below, kPackMagic));
  unsure |= code ^ __float_as_uint(__fmaf_rn(over, g.above, kPackMagic));
  return code;
}
__device__ __forceinline__ void pack_likely_pair(uint32_t& word, uint32_t x, const KvPackGroup& low,
                                                 const KvPackGroup& high, int place, uint32_t& unsure) {
  const uint32_t power = 1u << place;
  word += pack_likely(low_half(x), low, unsure) * power;
  word += pack_likely(high_half(x), high, unsure) * (power << 16);
}
// What `count` codes in each half of a word are too large by, from place `first` on.
template <int BITS>
__device__ __forceinline__ constexpr uint32_t pack_excess(int first, int count) {
  uint32_t excess = 0;
  for (int j = 0; j < count; ++j) excess += (kPackBits << (first + BITS * j)) + (kPackBits << (first + BITS * j + 16));
  return excess;
}

// (x - zero) / scale to the nearest integer, ties to even, at most top. The product with `above` rounds to that or to
// one more: half a unit below, h times scale decides, which is exact (9 bits by 11). The quotient in fp32 is h only
// where both are alike, since two numbers of fp32 differ by more than half a unit of the last place.
template <int BITS>
__device__ __forceinline__ uint32_t pack_exact(float x, const KvPackGroup& g) {
  constexpr float top = static_cast<float>((1 << BITS) - 1);
  const float over = x - g.zero, most = fminf(__fmaf_rn(over, g.above, kPackMagic) - kPackMagic, top + 1),
              half = most - 0.5f, at = half * g.scale;
  const float code = over > at ? most : over < at ? most - 1 : half + kPackMagic - kPackMagic;
  return __float_as_uint(fminf(code, top) + kPackMagic) - kPackBits;
}
template <int BITS>
__device__ __forceinline__ uint32_t pack_exact_pair(uint32_t x, const KvPackGroup& low, const KvPackGroup& high) {
  return pack_exact<BITS>(low_half(x), low) | pack_exact<BITS>(high_half(x), high) << 16;
}

// What a pair of likely codes is too small by, where they are unsure. It is read again: what led to the likely codes
// would otherwise be kept in registers for what is seldom.
template <int BITS>
__device__ __forceinline__ uint32_t pack_correction(const unsigned short* from, const KvPackGroup& low,
                                                    const KvPackGroup& high) {
  const uint32_t x = *reinterpret_cast<const volatile uint32_t*>(from);
  uint32_t likely = 0 - pack_excess<BITS>(0, 1), unsure = 0;
  pack_likely_pair(likely, x, low, high, 0, unsure);
  return pack_exact_pair<BITS>(x, low, high) - likely;
}

// Smallest and turned largest of the two halves of x each, of what was found so far.
struct KvRange2 {
  uint32_t low = 0x7c007c00u, high = 0x7c007c00u;
  __device__ __forceinline__ void add(uint32_t x) {
    low = min_nan_f16x2(low, x), high = min_nan_f16x2(high, x ^ 0x80008000u);
  }
  __device__ __forceinline__ uint32_t of_low() const { return (low & 0xffffu) | high << 16; }
  __device__ __forceinline__ uint32_t of_high() const { return low >> 16 | (high & 0xffff0000u); }
  __device__ __forceinline__ uint32_t of_both() const { return min_nan_f16x2(of_low(), of_high()); }
};

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

// turbomind: a token of a head at once, eight dims a lane, in the order 75316420 of 4 bits.
template <int BITS>
__device__ __forceinline__ void pack_words(const KvPackArgs& a, const unsigned short* from, unsigned char* to,
                                           unsigned char* number, int dims, bool there) {
  const int lanes = dims / 8, own = static_cast<int>(threadIdx.x & 31) % lanes;
  const uint4 x = *reinterpret_cast<const uint4*>(from + 8 * own);
  KvRange2 found;
  found.add(x.x), found.add(x.y), found.add(x.z), found.add(x.w);
  uint32_t range = found.of_both();
  for (int mask = 1; mask < lanes; mask *= 2) range = min_nan_f16x2(range, __shfl_xor_sync(0xffffffffu, range, mask));
  const KvPackGroup g =
      pack_group<BITS>(a, pack_first_zero(range, dims, [&](int i) { return static_cast<uint32_t>(from[i]); }));
  if (!there) return;
  if (own == 0) *reinterpret_cast<uint32_t*>(number) = g.scale_bits | static_cast<uint32_t>(g.zero_bits) << 16;
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
  if constexpr (BITS == 4) {
    uint32_t word = 0 - pack_excess<BITS>(0, 4), unsure = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) pack_likely_pair(word, pairs[i], g, g, 4 * i, unsure);
    if (unsure) {
      word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= pack_exact_pair<BITS>(pairs[i], g, g) << 4 * i;
    }
    *reinterpret_cast<uint32_t*>(to + 4 * own) = word;
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
    *reinterpret_cast<uint2*>(to + 8 * own) = make_uint2(word[0], word[1]);
  }
}

// The page that holds token `t` of a sequence of `count` pages; one that is none is told.
__device__ __forceinline__ int pack_page(const KvPackArgs& a, const int* table, int count, int t) {
  const int index = static_cast<int>(static_cast<unsigned>(t) / static_cast<unsigned>(a.places.page_tokens)),
            page = static_cast<unsigned>(index) < static_cast<unsigned>(count) ? table[index] : -1;
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

// Blocks of threads: of a chunk of at most 128 dims, keys and values fastest, then chunks, heads, blocks of tokens or
// sequences to append to. turbomind: 64 tokens, or the one appended.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM, bool APPEND>
__device__ __forceinline__ void kv_pack(const KvPackArgs& a) {
  griddepcontrol_wait_and_launch();
  const KvDecodeArgs& p = a.places;
  constexpr bool words = FORM == KvForm::kWords;
  const int chunks = words ? 1 : a.dims / CHUNK, thread = static_cast<int>(threadIdx.x);  // 1 or 2
  const unsigned index = blockIdx.x, of_head = index >> chunks, heads = static_cast<unsigned>(p.kv_heads);
  const bool value = index & 1;
  const int chunk = static_cast<int>(index >> 1) & (chunks - 1), number = static_cast<int>(of_head / heads),
            head = static_cast<int>(of_head) - number * p.kv_heads;
  const int* const table = APPEND ? a.table + static_cast<long long>(number) * p.table_pages : a.table;
  const unsigned short* const given = value ? a.v : a.k;
  const int length = APPEND ? a.lengths[number] : 0, tail = APPEND && !words ? a.tails[number] : 0;
  if (APPEND && (length < 0 || (!words && length % a.block != 0) || tail < 0 || tail > a.residual)) {
    if (thread == 0) *a.fault_page = 1;
    return;
  }
  if constexpr (words) {
    const int lanes = a.dims / 8, at_once = static_cast<int>(blockDim.x) / lanes,
              first = APPEND ? length : a.first + 64 * number,
              count = APPEND                        ? 1
                      : a.tokens - 64 * number < 64 ? a.tokens - 64 * number
                                                    : 64;
    for (int i = thread / lanes; i - thread / lanes < count; i += at_once) {
      const int own = i < count ? i : 0, page = pack_page(a, table, p.table_pages, first + own),
                in_page = (first + own) % p.page_tokens;
      const unsigned short* const from =
          given + (static_cast<long long>(APPEND ? number : 64 * number + own) * p.kv_heads + head) * a.dims;
      const long long at = page < 0 ? 0 : page;
      unsigned char* const number_to = (value ? a.value_numbers : a.key_numbers) + at * p.keys_page +
                                       static_cast<long long>(head) * p.key_number_head + 4 * in_page;
      unsigned char* const to = (value ? a.values : a.keys) + at * p.keys_page +
                                static_cast<long long>(head) * p.key_head +
                                static_cast<long long>(in_page) * (value ? p.value_row : p.key_row);
      if (value) pack_words<VALUES>(a, from, to, number_to, a.dims, i < count && page >= 0);
      else pack_words<KEYS>(a, from, to, number_to, a.dims, i < count && page >= 0);
    }
  } else {
    // Of a prompt a block; of a tail, when it is full, all.
    const int row = p.kv_heads * a.dims, count = APPEND ? (tail == a.residual ? a.residual : 0) : a.block,
              first = APPEND ? length : a.first + number * a.block;
    unsigned short* const kept =
        (value ? a.tail_values : a.tail_keys) + static_cast<long long>(number) * p.room * row + head * a.dims;
    const unsigned short* const from =
        APPEND ? kept : given + static_cast<long long>(number) * a.block * row + head * a.dims;
#pragma unroll 1
    for (int done = 0; done < count; done += a.block) {
      const int page = pack_page(a, table, p.table_pages, first + done);
      if (page < 0) break;
      if (done) __syncthreads();
      pack_block<KEYS, VALUES, CHUNK, FORM>(
          a, {from + static_cast<long long>(done) * row, row, page, (first + done) % p.page_tokens, head}, value,
          chunk);
    }
    if (APPEND) {
      __syncthreads();  // the tail has been read
      if (thread < CHUNK / 8)
        *reinterpret_cast<uint4*>(kept + static_cast<long long>(tail == a.residual ? 0 : tail) * row + chunk * CHUNK +
                                  8 * thread) =
            *reinterpret_cast<const uint4*>(given + static_cast<long long>(number) * row + head * a.dims +
                                            chunk * CHUNK + 8 * thread);
    }
  }
  if constexpr (!APPEND) return;
  // All of a sequence's blocks have read how long it is before the last writes it.
  __syncthreads();
  if (thread != 0 || atom_inc_acq_rel(a.counters + number) != static_cast<unsigned>(2 * chunks * p.kv_heads - 1))
    return;
  a.counters[number] = 0;
  if constexpr (words) {
    a.lengths[number] = length + 1;
  } else {
    if (tail == a.residual) a.lengths[number] = length + a.residual;
    a.tails[number] = tail == a.residual ? 1 : tail + 1;
  }
}

// Prompts and appending apart, so that the one keeps no registers for the other.
#define LPQ_KV_PACK(keys, values, chunk, form, name)                              \
  LPQ_KV_PACK_ONE(keys, values, chunk, form, lpq_kv_pack_##name##_##chunk, false) \
  LPQ_KV_PACK_ONE(keys, values, chunk, form, lpq_kv_append_##name##_##chunk, true)
#define LPQ_KV_PACK_ONE(keys, values, chunk, form, name, append)                 \
  extern "C" __global__ void __launch_bounds__(2 * chunk, 4 * 128 / chunk)       \
      name(const __grid_constant__ lpq::cuda::KvPackArgs a) {                    \
    lpq::cuda::kv_pack<keys, values, chunk, lpq::cuda::KvForm::form, append>(a); \
  }

}  // namespace lpq::cuda
