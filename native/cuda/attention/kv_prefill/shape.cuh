// What a block of kv_prefill.cuh takes at once of a packed cache: a tile of kTokens tokens, keys then values. First its
// words and numbers come to shared memory as they are (kv_prefill/fetch.cuh), then they are made halves
// (kv_prefill/halves.cuh), from which products read them.
#pragma once
#include "cuda/attention/kv_shape.h"

namespace lpq::cuda {

constexpr int kPrefillWorkers = 128;  // threads that fetch and convert

// Where 16 bytes (dims 8 chunk ..) of row `row` lie in a tile of ROWS rows of halves: blocks of 64 dims, rows of 128
// bytes whose chunks are swizzled as wgmma wants it; eight rows, and eight chunks of a row, meet no bank twice.
template <int ROWS>
__device__ __forceinline__ uint32_t prefill_place(int row, int chunk) {
  return static_cast<uint32_t>((chunk >> 3) * ROWS * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

// FORM: kFine (keys by channel, groups of any size), kTokens or kWords; sizes of groups are told at run time.
template <int KEY_BITS, int VALUE_BITS, int DIMS, KvForm FORM, int TOKENS>
struct PrefillShape {
  static constexpr bool kInWords = FORM == KvForm::kWords, kByToken = FORM == KvForm::kTokens;
  static constexpr int kKeyBits = KEY_BITS, kValueBits = VALUE_BITS, kDims = DIMS, kTokens = TOKENS;
  static constexpr int kKeyCodes = 16 / KEY_BITS, kValueCodes = 16 / VALUE_BITS;  // of a word
  // N_r: tokens whose keys share words. A tile of fewer takes kRun of every 32.
  static constexpr int kSpan = kInWords ? (TOKENS < 64 ? TOKENS : 64) : 32 * kKeyCodes;
  static constexpr int kParts = kSpan > TOKENS ? kSpan / TOKENS : 1, kRun = 32 / kParts;
  // Tokens of one page for certain, and how many times that.
  static constexpr int kUnit = kSpan < TOKENS ? kSpan : TOKENS, kUnits = TOKENS / kUnit;
  static constexpr int kKeyRow = kInWords ? DIMS * KEY_BITS / 8 : 2 * DIMS,
                       kKeyRows = kInWords ? kUnit : kUnit / kKeyCodes;  // of a unit
  static constexpr int kValueRow = DIMS * VALUE_BITS / 8;
  static constexpr int kChunk = DIMS < 128 ? DIMS : 128, kChunkWords = kChunk / kValueCodes;
  // Numbers of tokens come in eights: of a tile that takes fewer of 32, some of other tiles come with them.
  static constexpr int kNumberRun = kRun < 8 ? 8 : kRun, kNumberTokens = TOKENS / kRun * kNumberRun;
  static constexpr int kTokenNumbers = kInWords ? 4 * TOKENS : DIMS / 32 * kNumberTokens * 4;
  static constexpr int kGroups = kSpan / 32;  // of keys by channel in a unit's span, at most
  static constexpr int kKeyNumbers = kInWords || kByToken ? kTokenNumbers : kUnits * kGroups * DIMS * 4;
  static constexpr int kKeyBytes = TOKENS * DIMS * KEY_BITS / 8, kValueBytes = TOKENS * DIMS * VALUE_BITS / 8;
  static constexpr int kKeyStage = kKeyBytes + kKeyNumbers, kValueStage = kValueBytes + kTokenNumbers,
                       kStage = kKeyStage > kValueStage ? kKeyStage : kValueStage;
  static constexpr int kTileBytes = TOKENS * DIMS * 2;
  static_assert(TOKENS * DIMS % (64 * kPrefillWorkers) == 0 && TOKENS % 16 == 0);
};

// A tile's token that is number i of it, from its first on; `parts`: it takes some of every 32 (never of the tail).
template <class T>
__device__ __forceinline__ constexpr int prefill_token(int i) {
  return T::kParts == 1 ? i : 32 * (i / T::kRun) + i % T::kRun;
}

// The tokens of a sequence as a block walks over them: tiles of packed ones, then tiles of the tail.
template <class T>
struct PrefillWalk {
  int length, total, before;  // packed tokens; all; those that came before the first query
  int packed, begin, end;     // tiles that are packed and seen; of this block's split
  // sees: one past the newest token that some row of the block sees.
  __device__ __forceinline__ void cut(int sees, int split, int splits) {
    const int seen = sees < length ? (sees > 0 ? sees : 0) : length, span = T::kParts > 1 ? T::kSpan : T::kTokens;
    packed = (seen + span - 1) / span * T::kParts;
    const int tiles = packed + (sees > length ? (sees - length + T::kTokens - 1) / T::kTokens : 0),
              run = (tiles + splits - 1) / splits;
    begin = split * run, end = begin + run < tiles ? begin + run : tiles;
  }
  __device__ __forceinline__ int first(int tile) const {
    if (tile >= packed) return length + (tile - packed) * T::kTokens;
    return T::kParts == 1 ? tile * T::kTokens : tile / T::kParts * T::kSpan + tile % T::kParts * T::kRun;
  }
};

// What a block owns. Blocks: splits fastest, then tiles of rows (long walks first, so that the last blocks to run are
// short), kv heads, sequences. Row query * group + head of the group.
template <class T, int ROWS>
struct PrefillOwn {
  int group, rows, first_row, head, sequence, split, tile;  // tile: its number among all
  __device__ __forceinline__ PrefillOwn(const KvDecodeArgs& a) {
    group = a.heads / a.kv_heads, rows = a.queries * group;
    split = static_cast<int>(blockIdx.x) % a.splits, tile = static_cast<int>(blockIdx.x) / a.splits;
    const int rest = tile / a.query_tiles;
    first_row = (a.query_tiles - 1 - (tile - rest * a.query_tiles)) * ROWS;
    sequence = rest / a.kv_heads, head = rest - sequence * a.kv_heads;
  }
  __device__ __forceinline__ PrefillWalk<T> walk(const KvDecodeArgs& a) const {
    int length = a.lengths[sequence], tail = a.tails[sequence];
    const int whole = T::kInWords ? 1 : 512 / T::kKeyBits;
    if (length < 0 || length > a.table_pages * a.page_tokens || length % whole != 0 || tail < 0 || tail > a.room)
      *a.fault = 1, length = tail = 0;
    PrefillWalk<T> walk{length, length + tail, length + tail - a.queries, 0, 0, 0};
    walk.cut(sees(walk, first_row + ROWS < rows ? first_row + ROWS - 1 : rows - 1), split, a.splits);
    return walk;
  }
  // One past the newest token that a row sees.
  __device__ __forceinline__ int sees(const PrefillWalk<T>& walk, int row) const { return walk.before + row / group + 1; }
  // Where a row is in q and y.
  __device__ __forceinline__ long long at(const KvDecodeArgs& a, int row) const {
    const int query = row / group;
    return ((static_cast<long long>(sequence) * a.queries + query) * a.heads + head * group + row - query * group) *
           T::kDims;
  }
};

}  // namespace lpq::cuda
