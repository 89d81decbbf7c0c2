// Words and numbers of a tile of kv_prefill.cuh, copied to shared memory as they are (cp.async) by kPrefillWorkers
// threads:
//   keys of bitdecoding    [unit][row of words][2 D]
//   rows of tokens         [token][D b / 8], chunks of 16 bytes swizzled (kv_turn)
//   numbers by channel     [unit][group][D / 2]{s, s, z, z}
//   numbers by token       [group of dims][scales, zeros][token]; turbomind [token]{scale, zero}
#pragma once
#include "cuda/attention/kv_fetch.cuh"
#include "cuda/attention/kv_prefill/walk.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Where a unit of a packed tile lies: page -1 where it begins behind the last packed token.
struct PrefillUnit {
  int page, token;
};
template <class T>
__device__ __forceinline__ PrefillUnit prefill_unit(const KvDecodeArgs& a, const int* table, int length, int tile,
                                                    int unit) {
  const int first = T::kParts == 1 ? tile * T::kTokens + unit * T::kUnit : tile / T::kParts * T::kSpan;
  if (first >= length) return {-1, 0};
  const int index = static_cast<int>(static_cast<unsigned>(first) / static_cast<unsigned>(a.page_tokens));
  return {kv_page(a, table[index]), first - index * a.page_tokens};
}
// The first of kRun tokens of 32 that the tile takes.
template <class T>
__device__ __forceinline__ int prefill_part(int tile) {
  return T::kParts == 1 ? 0 : tile % T::kParts * T::kRun;
}

// Rows of tokens of a unit, BYTES each.
template <class T, int BYTES>
__device__ __forceinline__ void prefill_copy_tokens(uint32_t to, const unsigned char* from, int apart, int part,
                                                    int unit) {
  // Rows of a thread are kStep apart: of multiples of 8 chunks turn alike.
  constexpr int chunks = BYTES / 16, kStep = kPrefillWorkers / chunks;
  constexpr bool kAlike = kStep % 8 == 0;
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers, row = thread / chunks, c = thread % chunks,
            own = unit * T::kUnit + row;
  const auto place = [&](int i) {
    return static_cast<uint32_t>((own + i) * BYTES + ((c ^ kv_turn<BYTES>(own + i)) << 4));
  };
  if constexpr (kAlike) to += place(0);
  from += static_cast<long long>(part) * apart + 16 * c;
#pragma unroll
  for (int i = 0; i < T::kUnit; i += kStep) {
    if (T::kUnit % kStep != 0 && i + row >= T::kUnit) break;
    const int token = T::kParts == 1 || kStep % T::kRun == 0 ? prefill_token<T>(row) + prefill_token<T>(i)
                                                             : prefill_token<T>(row + i);
    cp_async_16(to + (kAlike ? static_cast<uint32_t>(i * BYTES) : place(i)), from + token * apart);
  }
}
// Scales and zeros of a unit's tokens, `groups` of dims.
template <class T>
__device__ __forceinline__ void prefill_copy_numbers(const KvDecodeArgs& a, uint32_t to, const unsigned char* lines,
                                                     int token, int part, int unit, int groups, int apart) {
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers;
  if constexpr (T::kInWords) {
    if (thread < T::kUnit / 4)
      cp_async_16(to + static_cast<uint32_t>(unit * T::kUnit * 4 + 16 * thread), lines + 4 * token + 16 * thread);
  } else {
    constexpr int pieces = T::kNumberTokens / T::kUnits / 8;
    for (int i = thread; i < 2 * pieces * groups; i += kPrefillWorkers) {
      const int piece = i % pieces, kind = i / pieces & 1, group = i / pieces / 2;
      const int t =
          token +
          (T::kParts == 1 ? 8 * piece : 32 * (8 * piece / T::kNumberRun) + 8 * piece % T::kNumberRun + (part & -8));
      cp_async_16(
          to + static_cast<uint32_t>(((group * 2 + kind) * T::kNumberTokens + unit * T::kUnit + 8 * piece) * 2),
          lines + static_cast<long long>(group) * apart + (t & -a.run) * 4 + kind * a.run * 2 + (t & (a.run - 1)) * 2);
    }
  }
}

template <class T>
__device__ __forceinline__ void prefill_fetch_keys(const KvDecodeArgs& a, const int* table, int length, int head,
                                                   int tile, uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x) % kPrefillWorkers, part = prefill_part<T>(tile);
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    const PrefillUnit from = prefill_unit<T>(a, table, length, tile, unit);
    if (from.page < 0) break;
    const unsigned char* const codes = a.keys + from.page * a.keys_page + static_cast<long long>(head) * a.key_head;
    const unsigned char* const numbers =
        a.key_numbers + from.page * a.key_numbers_page + static_cast<long long>(head) * a.key_number_head;
    if constexpr (T::kInWords) {
      prefill_copy_tokens<T, T::kKeyRow>(to, codes + static_cast<long long>(from.token) * a.key_row, a.key_row, part,
                                         unit);
    } else {
      constexpr int chunks = T::kKeyRow / 16, kStep = kPrefillWorkers / chunks;
      const unsigned char* const rows =
          codes + static_cast<long long>(from.token / T::kKeyCodes + part + thread / chunks) * a.key_row +
          16 * (thread % chunks);
      const uint32_t own = to + static_cast<uint32_t>(unit * T::kKeyRows * T::kKeyRow + 16 * thread);
#pragma unroll
      for (int i = 0; i < T::kKeyRows; i += kStep) {
        if (T::kKeyRows % kStep != 0 && i + thread / chunks >= T::kKeyRows) break;
        cp_async_16(own + static_cast<uint32_t>(i * T::kKeyRow), rows + i * a.key_row);
      }
    }
    if constexpr (T::kInWords || T::kByToken) {
      prefill_copy_numbers<T>(a, to + T::kKeyBytes, numbers, from.token, part, unit,
                              T::kInWords ? 1 : T::kDims / a.key_group, a.key_number_row);
    } else {
      constexpr int wide = T::kDims / 4;
      const int shift = 31 - __clz(a.key_group), groups = T::kSpan >> shift > 1 ? T::kSpan >> shift : 1;
      const unsigned char* const lines = numbers + static_cast<long long>(from.token >> shift) * a.key_number_row;
      for (int i = thread; i < groups * wide; i += kPrefillWorkers)
        cp_async_16(to + static_cast<uint32_t>(T::kKeyBytes + unit * T::kGroups * T::kDims * 4 + 16 * i),
                    lines + static_cast<long long>(i / wide) * a.key_number_row + 16 * (i % wide));
    }
  }
}

template <class T>
__device__ __forceinline__ void prefill_fetch_values(const KvDecodeArgs& a, const int* table, int length, int head,
                                                     int tile, uint32_t to) {
  const int part = prefill_part<T>(tile);
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    const PrefillUnit from = prefill_unit<T>(a, table, length, tile, unit);
    if (from.page < 0) break;
    prefill_copy_tokens<T, T::kValueRow>(to,
                                         a.values + from.page * a.values_page +
                                             static_cast<long long>(head) * a.value_head +
                                             static_cast<long long>(from.token) * a.value_row,
                                         a.value_row, part, unit);
    prefill_copy_numbers<T>(
        a, to + T::kValueBytes,
        a.value_numbers + from.page * a.value_numbers_page + static_cast<long long>(head) * a.value_number_head,
        from.token, part, unit, T::kInWords ? 1 : T::kDims / a.value_group, a.value_number_group);
  }
}

}  // namespace lpq::cuda
