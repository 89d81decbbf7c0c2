// A warp's ring of units in shared memory, and how they get there.
#pragma once
#include "cuda/attention/kv_codes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_memory.cuh"

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

// Log2 of how many of a unit's steps share a group of keys, and how many parts of 32 dims one of values.
template <class T>
__device__ __forceinline__ int kv_key_shared(const KvDecodeArgs& a) {
  return T::kForm == KvForm::kWide ? 0 : a.key_group >> 6;
}
template <class T>
__device__ __forceinline__ int kv_value_shared(const KvDecodeArgs& a) {
  return T::kForm == KvForm::kFine || T::kForm == KvForm::kTokens ? a.value_group >> 6 : 0;
}

// Hides what a number is made of, so that it stays in a register rather than being made again.
__device__ __forceinline__ void kv_keep(uint32_t& v) { asm volatile("" : "+r"(v)); }

// Of the warps that share a unit, which this is; the first dim of the head that it takes.
template <class T>
__device__ __forceinline__ int kv_sharer() {
  return T::kSharers > 1 ? static_cast<int>(threadIdx.x >> 5) % T::kSharers : 0;
}
template <class T>
__device__ __forceinline__ int kv_first_dim() {
  return T::kDims * kv_sharer<T>();
}

// A lane's part of the copies into its warp's unit of shared memory, and of the loads from there.
template <class T>
struct KvLane {
  static constexpr int kKeyChunks = T::kKeyRow / 16, kValueChunks = T::kValueRow / 16;
  static constexpr int kKeyTurns = kKeyChunks < 8 ? kKeyChunks / 2 : 4, kValueTurns = kValueChunks < 2 ? 1
                                                                                      : kValueChunks < 8
                                                                                          ? kValueChunks / 2
                                                                                          : 4;
  // From: of the head, in page 0.
  const unsigned char *keys, *key_numbers, *values, *value_numbers;
  // To: of a row's first chunk, and which chunk times 16 it takes of row 0.
  uint32_t key_to, key_chunk, value_to, value_chunk, key_number_to, value_number_to;
  // By ldmatrix: chunks 2 k + lane / 16 of keys, k below kKeyTurns, and 2 w + lane / 8 % 2 of values.
  uint32_t key_at[kKeyTurns], value_at[kValueTurns];
  // Numbers: keys' of a channel or token, of a row a group; values' scales, and zeros of a row a group.
  uint32_t key_scales, key_zeros, value_scales, value_zeros;

  __device__ __forceinline__ KvLane(const KvDecodeArgs& a, int head, uint32_t unit) {
    const int lane = static_cast<int>(threadIdx.x & 31), g = lane >> 2, t = lane & 3, matrix = lane >> 3;
    const uint32_t values_to = unit + T::kKeyBytes, key_numbers_to = values_to + T::kValueBytes,
                   value_numbers_to = key_numbers_to + T::kKeyNumbers;
    {
      const int own = lane / kKeyChunks, row = kv_row_of<T>(own), c = lane % kKeyChunks;
      keys = a.keys + static_cast<long long>(head) * a.key_head +
             ((own >> 4) * kv_key_sixteen(a) + (own & 15) * a.key_row + 16 * c);
      key_to = unit + static_cast<uint32_t>(row * T::kKeyRow);
      key_chunk = static_cast<uint32_t>(c ^ kv_turn<T::kKeyRow>(row)) << 4;
    }
    {
      const int own = lane / kValueChunks, row = kv_row_of<T>(own), c = lane % kValueChunks;
      values = a.values + static_cast<long long>(head) * a.value_head +
               ((own >> 4) * kv_value_sixteen(a) + (own & 15) * a.value_row + 16 * c);
      value_to = values_to + static_cast<uint32_t>(row * T::kValueRow);
      value_chunk = static_cast<uint32_t>(c ^ kv_turn<T::kValueRow>(row)) << 4;
    }
    key_numbers = a.key_numbers + static_cast<long long>(head) * a.key_number_head;
    if constexpr (T::kByToken) {
      key_numbers += token_numbers(a, a.key_number_row), key_number_to = key_numbers_to + token_numbers_to();
    } else {
      constexpr int wide = T::kDims / 4;  // chunks of a group
      key_numbers += lane / wide * a.key_number_row + 16 * (lane % wide);
      key_number_to = key_numbers_to + static_cast<uint32_t>(lane / wide * T::kChannelLine + 16 * (lane % wide));
    }
    value_numbers =
        a.value_numbers + static_cast<long long>(head) * a.value_number_head + token_numbers(a, a.value_number_group);
    value_number_to = value_numbers_to + token_numbers_to();
    {
      const int row = (lane & 7) + 8 * (matrix & 1);
#pragma unroll
      for (int k = 0; k < kKeyTurns; ++k)
        key_at[k] = unit + static_cast<uint32_t>(row * T::kKeyRow +
                                                 (((2 * k + (matrix >> 1)) ^ kv_turn<T::kKeyRow>(row)) << 4));
    }
    {
      const int row = (lane & 7) + 8 * (matrix >> 1);
#pragma unroll
      for (int w = 0; w < kValueTurns; ++w)
        value_at[w] =
            values_to +
            static_cast<uint32_t>(row * T::kValueRow +
                                  (((2 * w + (T::kNarrow ? 0 : matrix & 1)) ^ kv_turn<T::kValueRow>(row & 7)) << 4));
    }
    if constexpr (T::kByToken) {
      key_scales = key_zeros = key_numbers_to + static_cast<uint32_t>((T::kInWords ? 8 : 4) * g);
    } else {
      const int shared = kv_key_shared<T>(a);
      key_scales = key_numbers_to + static_cast<uint32_t>(t * 8);
      key_zeros = key_numbers_to + static_cast<uint32_t>(((g & (T::kGroups - 1)) >> shared) * T::kChannelLine + t * 8);
    }
    if constexpr (T::kSharers > 1) {  // numbers of turbomind are those of whole heads
      const int sharer = kv_sharer<T>();
      keys += sharer * T::kKeyRow, values += sharer * T::kValueRow;
      if constexpr (!T::kInWords) {
        key_numbers += sharer * (T::kByToken ? T::kDims / a.key_group * a.key_number_row : T::kDims * 4);
        value_numbers += sharer * (T::kDims / a.value_group * a.value_number_group);
      }
    }
    const int part = g & (T::kValueGroups - 1);
    const uint32_t own = static_cast<uint32_t>(T::kInWords ? 16 * t : T::kByToken ? 8 * t : 4 * t);
    value_scales = value_numbers_to + own;
    value_zeros = value_numbers_to + own +
                  static_cast<uint32_t>(T::kInWords ? 0 : (2 * (part >> kv_value_shared<T>(a)) + 1) * T::kTokenLine);
    kv_keep(key_to), kv_keep(key_chunk), kv_keep(value_to), kv_keep(value_chunk), kv_keep(key_number_to),
        kv_keep(value_number_to), kv_keep(key_scales), kv_keep(key_zeros), kv_keep(value_scales), kv_keep(value_zeros);
#pragma unroll
    for (int k = 0; k < kKeyTurns; ++k) kv_keep(key_at[k]);
#pragma unroll
    for (int w = 0; w < kValueTurns; ++w) kv_keep(value_at[w]);
  }

  // Chunks 2 k + lane / 16 of keys, of rows behind 16 j.
  __device__ __forceinline__ uint32_t keys_at(int j, int k) const {
    return key_at[k % kKeyTurns] + static_cast<uint32_t>(16 * j * T::kKeyRow + k / kKeyTurns * kKeyTurns * 32);
  }
  __device__ __forceinline__ uint32_t values_at(int row, int w) const {
    return value_at[w % kValueTurns] + static_cast<uint32_t>(row * T::kValueRow + w / kValueTurns * kValueTurns * 32);
  }

  // From one sixteen of rows to the next.
  static __device__ __forceinline__ int kv_key_sixteen(const KvDecodeArgs& a) {
    return T::kInWords ? 16 * a.key_row : 0;
  }
  static __device__ __forceinline__ int kv_value_sixteen(const KvDecodeArgs& a) {
    return (T::kInWords ? 16 : 32) * a.value_row;
  }
  // Of numbers of tokens a lane copies, from the lowest bit, piece, step, kind, group of dims.
  static constexpr int kGroupChunks = T::kInWords ? T::kTokens / 4 : 4 * T::kSteps;

 private:
  static __device__ __forceinline__ int token_numbers(const KvDecodeArgs& a, int apart) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    if constexpr (T::kInWords) return 16 * lane;
    const int piece = lane & 1, step = (lane >> 1) % T::kSteps, kind = (lane >> 1) / T::kSteps & 1,
              group = lane / kGroupChunks, token = 32 * step;
    return group * apart + (token & -a.run) * 4 + kind * a.run * 2 + (token & (a.run - 1)) * 2 + 16 * piece;
  }
  static __device__ __forceinline__ uint32_t token_numbers_to() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    if constexpr (T::kInWords) return static_cast<uint32_t>(16 * lane);
    const int piece = lane & 1, step = (lane >> 1) % T::kSteps, kind = (lane >> 1) / T::kSteps & 1,
              group = lane / kGroupChunks;
    return static_cast<uint32_t>((group * 2 + kind) * T::kTokenLine + 2 * (16 * step + 8 * piece));
  }
};

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
__device__ __forceinline__ void kv_check_page(const KvDecodeArgs& a, KvPlace& place) {
  place.page = kv_page(a, place.page);
}
// Pages hold less than 2 GiB.
__device__ __forceinline__ const unsigned char* kv_in_page(const unsigned char* lane, const KvPlace& place,
                                                           long long page, int offset) {
  return lane + static_cast<long long>(place.page) * static_cast<int>(page) + offset;
}

// ROWS rows of BYTES: tokens `row` apart, sixteens of them `step`.
template <class T, int ROWS, int BYTES>
__device__ __forceinline__ void kv_copy_rows(uint32_t to, uint32_t chunk, const unsigned char* from, int row,
                                             int step) {
  constexpr int at_once = 32 / (BYTES / 16);
#pragma unroll
  for (int first = 0; first < ROWS; first += at_once) {
    // Bits of `first` and of the lane's own row are apart, in tokens and in rows.
    const int rows = kv_row_of<T>(first);
    cp_async_16_line(
        to + static_cast<uint32_t>(rows * BYTES) + (chunk ^ static_cast<uint32_t>(kv_turn<BYTES>(rows) << 4)),
        from + ((first >> 4) * step + (first & 15) * row));
  }
}

// Scales and zeros of tokens; in shared memory [group of dims][scales, zeros][tokens], of turbomind [tokens][scale,
// zero].
template <class T>
__device__ __forceinline__ void kv_copy_numbers(uint32_t to, const unsigned char* from, int groups, int apart) {
  constexpr int chunks = KvLane<T>::kGroupChunks, at_once = 32 / chunks;
  if constexpr (T::kInWords) {
    if (static_cast<int>(threadIdx.x & 31) < chunks) cp_async_16_line(to, from);
  } else {
#pragma unroll
    for (int group = 0; group < T::kDims / 32; group += at_once)
      if (group + static_cast<int>(threadIdx.x & 31) / chunks < groups)
        cp_async_16_line(to + static_cast<uint32_t>(group * 2 * T::kTokenLine), from + group * apart);
  }
}
// Offset of a unit's numbers of tokens in a page.
template <class T>
__device__ __forceinline__ int kv_numbers_offset(const KvDecodeArgs& a, const KvPlace& place) {
  if constexpr (T::kInWords) return 4 * place.token;
  return (place.token & -a.run) * 4 + (place.token & (a.run - 1)) * 2 + 2 * place.half;
}

template <class T>
__device__ __forceinline__ void kv_fetch_keys(const KvDecodeArgs& a, const KvPlace& place, const KvLane<T>& lane) {
  const int row = T::kInWords ? place.token : place.token / T::kKeyCodes + place.half;
  kv_copy_rows<T, T::kKeyRows, T::kKeyRow>(lane.key_to, lane.key_chunk,
                                           kv_in_page(lane.keys, place, a.keys_page, row * a.key_row), a.key_row,
                                           KvLane<T>::kv_key_sixteen(a));
  if constexpr (T::kByToken) {
    kv_copy_numbers<T>(lane.key_number_to,
                       kv_in_page(lane.key_numbers, place, a.key_numbers_page, kv_numbers_offset<T>(a, place)),
                       T::kInWords ? 1 : T::kDims / 32 >> (a.key_group >> 6), a.key_number_row);
  } else {
    constexpr bool kWide = T::kForm == KvForm::kWide;
    constexpr int wide = T::kDims / 4, most = T::kGroups * wide;  // chunks of a group, and of all
    const int shared = kv_key_shared<T>(a), chunks = kWide ? most : wide * T::kTile / 32 >> shared,
              first = kWide ? place.token / 128 : place.token >> (5 + shared);
    const unsigned char* const from = kv_in_page(lane.key_numbers, place, a.key_numbers_page, first * a.key_number_row);
#pragma unroll
    for (int k = 0; k < most; k += 32) {
      const int group = k / wide, in_group = k % wide;
      if ((kWide && most % 32 == 0) || k + static_cast<int>(threadIdx.x & 31) < chunks)
        cp_async_16_line(lane.key_number_to + static_cast<uint32_t>(group * T::kChannelLine + 16 * in_group),
                         from + (group * a.key_number_row + 16 * in_group));
    }
  }
}

template <class T>
__device__ __forceinline__ void kv_fetch_values(const KvDecodeArgs& a, const KvPlace& place, const KvLane<T>& lane) {
  kv_copy_rows<T, T::kTokens, T::kValueRow>(
      lane.value_to, lane.value_chunk,
      kv_in_page(lane.values, place, a.values_page, (place.token + place.half) * a.value_row), a.value_row,
      KvLane<T>::kv_value_sixteen(a));
  kv_copy_numbers<T>(
      lane.value_number_to, kv_in_page(lane.value_numbers, place, a.value_numbers_page, kv_numbers_offset<T>(a, place)),
      T::kForm == KvForm::kWide ? T::kValueGroups : T::kDims / 32 >> kv_value_shared<T>(a), a.value_number_group);
}

// Scales and zeros of keys by token: of this lane's tokens 2 g and 2 g + 1 of step j, for a group of dims.
struct KvNumbers {
  float scale[2], zero[2];
};
template <class T>
__device__ __forceinline__ KvNumbers kv_numbers(const KvLane<T>& lane, int group, int j) {
  if constexpr (T::kInWords) {
    const uint2 both = ld_shared_v2(lane.key_scales + static_cast<uint32_t>(64 * j));
    return {{low_half(both.x), low_half(both.y)}, {high_half(both.x), high_half(both.y)}};
  }
  const uint32_t at = lane.key_scales + static_cast<uint32_t>(2 * group * T::kTokenLine + 32 * j),
                 scales = ld_shared(at), zeros = ld_shared(at + T::kTokenLine);
  return {{low_half(scales), high_half(scales)}, {low_half(zeros), high_half(zeros)}};
}

// Scales (KIND 0) or zeros (1) of values, of rows 2 (lane % 4) and the next behind row 16 j + 8 half; `at`: of step 0.
// Of turbomind those of `here` tokens, and 0 behind them, where there may be no numbers.
template <class T, int KIND>
__device__ __forceinline__ uint32_t kv_pair(uint32_t at, int j, int half, int here) {
  if constexpr (T::kInWords) {
    const int token = 16 * j + 4 * static_cast<int>(threadIdx.x & 3) + half;
    const uint32_t of = at + static_cast<uint32_t>(64 * j + 4 * half), first = ld_shared(of),
                   second = ld_shared(of + 8);
    return (token < here ? KIND ? first >> 16 : first & 0xffff : 0) |
           (token + 2 < here ? (KIND ? second >> 16 : second & 0xffff) << 16 : 0);
  }
  const uint32_t step = at + static_cast<uint32_t>(32 * j);
  if constexpr (!T::kByToken) return ld_shared(step + static_cast<uint32_t>(16 * half));
  const uint2 four = ld_shared_v2(step);
  return __byte_perm(four.x, four.y, half ? 0x7632 : 0x5410);
}

}  // namespace lpq::cuda
