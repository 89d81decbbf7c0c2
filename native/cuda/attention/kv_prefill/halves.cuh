// Keys and values of a tile of kv_prefill.cuh as halves: code * scale + zero, rounded once. kPrefillWorkers threads.
#pragma once
#include "cuda/attention/kv_prefill/fetch.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/logic.cuh"
#include "cuda/ptx/x2.cuh"
#include "cuda/unroll.cuh"

namespace lpq::cuda {

// Codes number J of the two words of a register, as halves: as the fraction of a number from 1024 on, brought down by
// one fma, which is exact.
template <int BITS, int J>
__device__ __forceinline__ uint32_t prefill_codes(uint32_t word) {
  constexpr int kDown = BITS * J + BITS <= 10 ? 0 : BITS == 2 ? 10 : 8, kAt = BITS * J - kDown;
  constexpr uint32_t kMask = (((1u << BITS) - 1) << kAt) * 0x10001u;
  constexpr uint32_t kUnit = static_cast<uint32_t>((15 - kAt) << 10) * 0x10001u,  // 2^-kAt
      kLess = (0x8000u | static_cast<uint32_t>((25 - kAt) << 10)) * 0x10001u;     // -2^(10 - kAt)
  return fma_x2<false>(and_xor(word >> kDown, kMask, 0x64006400u), kUnit, kLess);
}
// Bytes 2 X and 2 X + 1.
template <int X>
__device__ __forceinline__ uint32_t prefill_bytes(uint32_t word) {
  return sub_f16x2(__byte_perm(word, 0x64646464u, X == 0 ? 0x4140 : 0x4342), 0x64006400u);
}

struct PrefillNumbers {
  uint32_t scale, zero;  // in both halves
};
// Of a token, of a group of dims; 0 of one that is not `there`, whose numbers may be none.
template <class T>
__device__ __forceinline__ PrefillNumbers prefill_numbers(uint32_t from, int group, int token, bool there) {
  if constexpr (T::kInWords) {
    const uint32_t word = ld_shared(from + static_cast<uint32_t>(4 * token));
    return {there ? lower_twice(word) : 0, there ? upper_twice(word) : 0};
  }
  const uint32_t at = from + static_cast<uint32_t>((2 * group * T::kNumberTokens + token) * 2),
                 scale = ld_shared_u16(at), zero = ld_shared_u16(at + 2 * T::kNumberTokens);
  return {there ? both(scale) : 0, there ? both(zero) : 0};
}
// Which of the numbers in shared memory are those of token i of a tile.
template <class T>
__device__ __forceinline__ int prefill_number_at(int i, int part) {
  return T::kRun == T::kNumberRun ? i : i / T::kRun * T::kNumberRun + (part & 7) + i % T::kRun;
}

// Keys of bitdecoding: (thread) -> dims 8 c .. of a row of words, c = thread % (D / 8), hence of R tokens.
template <class T>
__device__ __forceinline__ void prefill_keys(const KvDecodeArgs& a, uint32_t from, uint32_t to, int part) {
  constexpr int kChunks = T::kDims / 8, kStep = kPrefillWorkers / kChunks,
                kRows = T::kKeyRows < kStep ? 1 : T::kKeyRows / kStep;
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers, c = thread % kChunks, first = thread / kChunks,
            shift = 31 - __clz(a.key_group);
  if (T::kKeyRows < kStep && first >= T::kKeyRows) return;
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    uint32_t words[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      ld_shared_v4(words[r],
                   from + static_cast<uint32_t>(((unit * T::kKeyRows + first + r * kStep) * kChunks + c) * 16));
    each<0, T::kKeyCodes>([&](auto step) {
      constexpr int J = decltype(step)::value;
      uint32_t scales[4], zeros[4];
      if constexpr (!T::kByToken) {
        const uint32_t at = from + static_cast<uint32_t>(
                                       T::kKeyBytes + (unit * T::kGroups + (32 * J >> shift)) * T::kDims * 4 + 32 * c);
        const uint4 low = ld_shared_v4(at), high = ld_shared_v4(at + 16);
        scales[0] = low.x, scales[1] = low.z, scales[2] = high.x, scales[3] = high.z;
        zeros[0] = low.y, zeros[1] = low.w, zeros[2] = high.y, zeros[3] = high.w;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int token = (T::kParts == 1 ? unit * T::kUnit + 32 * J : J * T::kRun) + first + r * kStep;
        if constexpr (T::kByToken) {
          const PrefillNumbers n =
              prefill_numbers<T>(from + T::kKeyBytes, 8 * c >> shift, prefill_number_at<T>(token, part), true);
#pragma unroll
          for (int i = 0; i < 4; ++i) scales[i] = n.scale, zeros[i] = n.zero;
        }
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] = fma_x2<false>(prefill_codes<T::kKeyBits, J>(words[r][i]), scales[i], zeros[i]);
        st_shared_v4(to + prefill_place<T::kTokens>(token, c), make_uint4(x[0], x[1], x[2], x[3]));
      }
    });
  }
}

// Rows of tokens, BITS a code; WORDS: dims lie one after another. (thread) -> token thread % kTokens, of its sixteens
// of bytes one of kTokens D / 128 parts. Tokens from `here` on become 0.
template <class T, int BITS, bool WORDS>
__device__ __forceinline__ void prefill_rows(const KvDecodeArgs& a, uint32_t from, uint32_t to, int part, int here,
                                             int value_group) {
  constexpr int kRow = T::kDims * BITS / 8, kOwners = kPrefillWorkers / T::kTokens, kOwn = kRow / 16 / kOwners;
  constexpr int kInChunk = T::kChunkWords / 8;  // sixteens of bytes of a chunk of dims
  static_assert(kOwn >= 1 && kOwn * kOwners * 16 == kRow);
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers, token = thread % T::kTokens,
            first = thread / T::kTokens * kOwn;
  const bool there = prefill_token<T>(token) < here;
  const uint32_t numbers = from + static_cast<uint32_t>(T::kTokens * kRow);
  uint32_t words[kOwn][4];
#pragma unroll
  for (int u = 0; u < kOwn; ++u)
    ld_shared_v4(words[u], from + static_cast<uint32_t>(token * kRow + (((first + u) ^ kv_turn<kRow>(token)) << 4)));
  PrefillNumbers n;
  if constexpr (WORDS) {
    n = prefill_numbers<T>(numbers, 0, token, there);
#pragma unroll
    for (int u = 0; u < kOwn; ++u)
#pragma unroll
      for (int k = 0; k < 32 / BITS / 2; ++k) {
        uint32_t x[4];
        each<0, 4>([&](auto step) {
          constexpr int J = decltype(step)::value;
          uint32_t codes;
          if constexpr (BITS == 4) codes = prefill_codes<4, J>(words[u][k]);
          else codes = prefill_bytes<J % 2>(words[u][2 * k + J / 2]);
          x[J] = fma_x2<false>(codes, n.scale, n.zero);
        });
        st_shared_v4(to + prefill_place<T::kTokens>(token, (first + u) * (16 / BITS) + k),
                     make_uint4(x[0], x[1], x[2], x[3]));
      }
  } else {
    const int shift = 31 - __clz(value_group), chunk = first / kInChunk * (T::kChunk / 8) + first % kInChunk,
              number = prefill_number_at<T>(token, part);
    each<0, 16 / BITS>([&](auto step) {
      constexpr int J = decltype(step)::value;
      each<0, kOwn>([&](auto own) {
        constexpr int u = decltype(own)::value, kFrom = J * T::kChunkWords / 8 + u;
        // Numbers are those of 32 dims at least.
        if constexpr (kFrom % 4 == 0) n = prefill_numbers<T>(numbers, 8 * (chunk + kFrom) >> shift, number, there);
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = fma_x2<false>(prefill_codes<BITS, J>(words[u][i]), n.scale, n.zero);
        st_shared_v4(to + prefill_place<T::kTokens>(token, chunk + kFrom), make_uint4(x[0], x[1], x[2], x[3]));
      });
    });
  }
}

// Halves of a tile of the exact tail, 0 behind its end.
template <class T>
__device__ __forceinline__ void prefill_tail(const KvDecodeArgs& a, const unsigned short* rows, int sequence, int head,
                                             int first, int tail, uint32_t to) {
  constexpr int kChunks = T::kDims / 8, kStep = kPrefillWorkers / kChunks;
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers, c = thread % kChunks;
  const unsigned short* const from =
      rows + (static_cast<long long>(sequence) * a.room * a.kv_heads + head) * a.head_dims + 8 * c;
#pragma unroll 1
  for (int row = thread / kChunks; row < T::kTokens; row += kStep) {
    const bool there = first + row < tail && 8 * c < a.head_dims;
    cp_async_16(to + prefill_place<T::kTokens>(row, c),
                there ? from + static_cast<long long>(first + row) * a.kv_heads * a.head_dims : rows, there ? 16 : 0);
  }
  cp_async_commit();
  cp_async_wait<0>();
}

// Keys, or values, of a tile that was fetched, or of the tail.
template <class T, bool VALUE>
__device__ __forceinline__ void prefill_halves(const KvDecodeArgs& a, const PrefillWalk<T>& walk, int sequence,
                                               int head, int tile, uint32_t from, uint32_t to) {
  const int first = walk.first(tile);
  if (tile >= walk.packed)
    return prefill_tail<T>(a, VALUE ? a.tail_values : a.tail_keys, sequence, head, first - walk.length,
                           walk.total - walk.length, to);
  const int part = prefill_part<T>(tile);
  if constexpr (VALUE)
    prefill_rows<T, T::kValueBits, T::kInWords>(a, from, to, part, walk.length - first, a.value_group);
  else if constexpr (T::kInWords) prefill_rows<T, T::kKeyBits, true>(a, from, to, part, walk.length - first, 0);
  else prefill_keys<T>(a, from, to, part);
}
template <class T, bool VALUE>
__device__ __forceinline__ void prefill_fetch(const KvDecodeArgs& a, const PrefillWalk<T>& walk, int sequence, int head,
                                              int tile, uint32_t to) {
  if (tile >= walk.packed || tile >= walk.end) return;
  const int* const table = a.table + static_cast<long long>(sequence) * a.table_pages;
  if constexpr (VALUE) prefill_fetch_values<T>(a, table, walk.length, head, tile, to);
  else prefill_fetch_keys<T>(a, table, walk.length, head, tile, to);
}

}  // namespace lpq::cuda
