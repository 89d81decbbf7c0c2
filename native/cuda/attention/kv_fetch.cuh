// A warp's ring of units in shared memory, and how they get there.
#pragma once
#include "cuda/attention/kv_codes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// Rows of shared memory are tokens in their order. Where keys have numbers by token, of every 16 tokens 2 i are rows i
// and tokens 2 i + 1 rows 8 + i, so that a lane of S = K Qᵀ, which has rows g and g + 8, has two tokens side by side,
// and their scales are one word.
template <class T>
__device__ __forceinline__ constexpr int kv_row_of(int token) {
  return T::kByToken ? (token & ~15) | (token & 1) << 3 | (token & 15) >> 1 : token;
}

// Where chunk c (16 bytes) of a row of BYTES lies among the row's, so that eight rows meet no bank twice.
template <int BYTES>
__device__ __forceinline__ constexpr int kv_turn(int row) {
  constexpr int chunks = BYTES / 16;
  return chunks >= 8 ? row & 7 : (row * chunks >> 3) & (chunks - 1);
}

template <class T>
struct KvUnit {
  uint32_t keys;  // address of a stage
  __device__ uint32_t values() const { return keys + T::kKeyBytes; }
  __device__ uint32_t key_numbers() const { return values() + T::kValueBytes; }
  __device__ uint32_t value_numbers() const { return key_numbers() + T::kKeyNumbers; }
  __device__ uint32_t key_chunk(int row, int c) const {
    return keys + static_cast<uint32_t>(row * T::kKeyRow + ((c ^ kv_turn<T::kKeyRow>(row)) << 4));
  }
  // Row `first` + `row`; eights before `first` turn nothing.
  __device__ uint32_t value_chunk(int first, int row, int c) const {
    return values() +
           static_cast<uint32_t>((first + row) * T::kValueRow + ((c ^ kv_turn<T::kValueRow>(row & 7)) << 4));
  }
};

// Which set of tokens this lane's columns 2 (lane % 4) and the next of a product are of, and its column lane / 4 of an
// operand B.
template <class T>
__device__ __forceinline__ int kv_set() {
  return T::kSets == 2 ? static_cast<int>(threadIdx.x & 3) >> 1 : 0;
}
template <class T>
__device__ __forceinline__ int kv_set_of_operand() {
  return T::kSets == 2 ? static_cast<int>(threadIdx.x & 31) >> 4 : 0;
}
// The two registers of an operand B of which k 0 to 7 are of the first set of tokens and k 8 to 15 of the second: each
// column has `x` where its own set is, and 0 elsewhere.
__device__ __forceinline__ void kv_apart(uint32_t x, uint32_t (&b)[2]) {
  const bool second = (threadIdx.x & 16) != 0;
  b[0] = mul_x2<false>(x, second ? 0 : 0x3c003c00u), b[1] = mul_x2<false>(x, second ? 0x3c003c00u : 0);
}

// Where a unit begins: a page, and its first token there.
struct KvPlace {
  int page, token, half;
};
template <class T>
__device__ __forceinline__ KvPlace kv_place(const KvDecodeArgs& a, const int* table, int unit) {
  const int index = a.page_shift >= 0 ? unit >> a.page_shift : unit / a.page_units, rest = unit - index * a.page_units;
  return {table[index], rest / T::kTileUnits * T::kTile, T::kTileUnits == 2 ? 16 * (unit & 1) : 0};
}
// A page that is none is told, and the first is read in its place.
__device__ __forceinline__ int kv_page(const KvDecodeArgs& a, int page) {
  if (static_cast<unsigned>(page) < static_cast<unsigned>(a.pages)) return page;
  *a.fault = 1;
  return 0;
}

// ROWS rows of BYTES: tokens `row` apart, sixteens of them `step`.
template <class T, int ROWS, int BYTES>
__device__ __forceinline__ void kv_copy_rows(uint32_t to, const unsigned char* from, int row, int step) {
  constexpr int chunks = BYTES / 16, at_once = 32 / chunks;
  const int lane = static_cast<int>(threadIdx.x & 31), own = lane / chunks, c = lane % chunks, own_row = kv_row_of<T>(own),
            turned = c ^ kv_turn<BYTES>(own_row);
  const unsigned char* const source = from + (own >> 4) * step + (own & 15) * row + 16 * c;
  const uint32_t target = to + static_cast<uint32_t>(own_row * BYTES);
#pragma unroll
  for (int first = 0; first < ROWS; first += at_once) {
    // Bits of `first` and of the own row are apart, in tokens and in rows.
    const int rows = kv_row_of<T>(first);
    cp_async_16(target + static_cast<uint32_t>(rows * BYTES + ((turned ^ kv_turn<BYTES>(rows)) << 4)),
                source + (first >> 4) * step + (first & 15) * row, 16);
  }
}

// Bytes of a token's number from the begin of its line: a second set is a little further, in other banks.
template <class T>
__device__ __forceinline__ constexpr int kv_number_at(int token) {
  return 2 * token + (T::kSets == 2 && token >= 16 * T::kPasses ? 16 : 0);
}

// Scales and zeros of tokens; in shared memory [group of dims][scales, zeros][tokens], of turbomind [tokens][scale,
// zero].
template <class T>
__device__ __forceinline__ void kv_copy_numbers(uint32_t to, const unsigned char* lines, const KvPlace& place,
                                                int groups, int apart, int run) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  if constexpr (T::kInWords) {
    if (lane < T::kTokens / 4)
      cp_async_16(to + 16 * static_cast<uint32_t>(lane), lines + 4 * place.token + 16 * lane, 16);
  } else {
    for (int i = lane; i < 4 * T::kSteps * groups; i += 32) {
      const int piece = i & 1, step = (i >> 1) % T::kSteps, kind = (i >> 1) / T::kSteps & 1,
                group = (i >> 1) / T::kSteps / 2;
      const int t = place.token + 32 * step + place.half;
      cp_async_16(to + static_cast<uint32_t>((group * 2 + kind) * T::kTokenLine + kv_number_at<T>(16 * step + 8 * piece)),
                  lines + static_cast<long long>(group) * apart + (t & -run) * 4 + kind * run * 2 +
                      (t & (run - 1)) * 2 + 16 * piece,
                  16);
    }
  }
}

template <class T>
__device__ __forceinline__ void kv_fetch_keys(const KvDecodeArgs& a, int head, const KvPlace& place,
                                              const KvUnit<T>& to) {
  const int lane = static_cast<int>(threadIdx.x & 31), page = kv_page(a, place.page);
  const unsigned char* const codes = a.keys + page * a.keys_page + static_cast<long long>(head) * a.key_head;
  if constexpr (T::kInWords)
    kv_copy_rows<T, T::kKeyRows, T::kKeyRow>(to.keys, codes + static_cast<long long>(place.token) * a.key_row, a.key_row,
                                          16 * a.key_row);
  else
    kv_copy_rows<T, T::kKeyRows, T::kKeyRow>(
        to.keys, codes + static_cast<long long>(place.token / T::kKeyCodes + place.half) * a.key_row, a.key_row, 0);
  const unsigned char* const numbers =
      a.key_numbers + page * a.key_numbers_page + static_cast<long long>(head) * a.key_number_head;
  if constexpr (T::kByToken) {
    kv_copy_numbers<T>(to.key_numbers(), numbers, place, T::kInWords ? 1 : T::kDims / a.key_group, a.key_number_row,
                       a.run);
  } else {
    constexpr int wide = T::kDims / 4;  // chunks of a group
    const int chunks = T::kForm == KvForm::kWide ? T::kGroups * wide : wide * T::kTile / a.key_group;
    const int first = T::kForm == KvForm::kWide ? place.token / 128 : place.token / a.key_group;
    for (int i = lane; i < chunks; i += 32)
      cp_async_16(to.key_numbers() + static_cast<uint32_t>(i / wide * T::kChannelLine + 16 * (i % wide)),
                  numbers + static_cast<long long>(first + i / wide) * a.key_number_row + 16 * (i % wide), 16);
  }
}

template <class T>
__device__ __forceinline__ void kv_fetch_values(const KvDecodeArgs& a, int head, const KvPlace& place,
                                                const KvUnit<T>& to) {
  const int page = kv_page(a, place.page);
  const unsigned char* const codes = a.values + page * a.values_page + static_cast<long long>(head) * a.value_head +
                                     static_cast<long long>(place.token + place.half) * a.value_row;
  kv_copy_rows<T, T::kTokens, T::kValueRow>(to.values(), codes, a.value_row, (T::kInWords ? 16 : 32) * a.value_row);
  const unsigned char* const numbers =
      a.value_numbers + page * a.value_numbers_page + static_cast<long long>(head) * a.value_number_head;
  kv_copy_numbers<T>(to.value_numbers(), numbers, place,
                     T::kForm == KvForm::kWide ? T::kValueGroups : T::kDims / a.value_group, a.value_number_group,
                     a.run);
}

// Scales and zeros of keys by token: of this lane's tokens 2 g and 2 g + 1 of step j, for a group of dims.
struct KvNumbers {
  float scale[2], zero[2];
};
template <class T>
__device__ __forceinline__ KvNumbers kv_numbers(uint32_t from, int group, int j) {
  const int g = static_cast<int>(threadIdx.x & 31) >> 2;
  if constexpr (T::kInWords) {
    const uint2 both = ld_shared_v2(from + static_cast<uint32_t>(16 * j + 2 * g) * 4);
    return {{low_half(both.x), low_half(both.y)}, {high_half(both.x), high_half(both.y)}};
  }
  const uint32_t at = from + static_cast<uint32_t>(2 * group * T::kTokenLine + kv_number_at<T>(16 * j) + 4 * g),
                 scales = ld_shared(at), zeros = ld_shared(at + T::kTokenLine);
  return {{low_half(scales), high_half(scales)}, {low_half(zeros), high_half(zeros)}};
}

// Scales (KIND 0) or zeros (1) of values, of rows 2 (lane % 4) and the next behind row 16 j + 8 half, for a group of
// dims; of turbomind those of `here` tokens, and 0 behind them, where there may be no numbers.
template <class T, int KIND>
__device__ __forceinline__ uint32_t kv_pair(uint32_t from, int group, int j, int half, int here) {
  const int t = static_cast<int>(threadIdx.x & 3);
  if constexpr (T::kInWords) {
    const int token = 16 * j + 4 * t + half;
    const uint32_t at = from + static_cast<uint32_t>(4 * token), first = ld_shared(at), second = ld_shared(at + 8);
    return (token < here ? KIND ? first >> 16 : first & 0xffff : 0) |
           (token + 2 < here ? (KIND ? second >> 16 : second & 0xffff) << 16 : 0);
  }
  const uint32_t line =
      from + static_cast<uint32_t>((2 * group + KIND) * T::kTokenLine + kv_number_at<T>(16 * j));
  if constexpr (!T::kByToken) return ld_shared(line + static_cast<uint32_t>(16 * half + 4 * t));
  const uint2 four = ld_shared_v2(line + static_cast<uint32_t>(8 * t));
  return __byte_perm(four.x, four.y, half ? 0x7632 : 0x5410);
}

}  // namespace lpq::cuda
