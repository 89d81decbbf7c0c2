// What a block of kv_prefill.cuh owns, and the tiles of tokens that it walks over.
#pragma once
#include "cuda/attention/kv_prefill/shape.h"

namespace lpq::cuda {

// Where 16 bytes (dims 8 chunk ..) of row `row` lie in a tile of ROWS rows of halves: blocks of 64 dims, rows of 128
// bytes whose chunks are swizzled as wgmma wants it; eight rows, and eight chunks of a row, meet no bank twice.
template <int ROWS>
__device__ __forceinline__ uint32_t prefill_place(int row, int chunk) {
  return static_cast<uint32_t>((chunk >> 3) * ROWS * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

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
  __device__ __forceinline__ int sees(const PrefillWalk<T>& walk, int row) const {
    return walk.before + row / group + 1;
  }
  // Where a row is in q and y.
  __device__ __forceinline__ long long at(const KvDecodeArgs& a, int row) const {
    const int query = row / group;
    return ((static_cast<long long>(sequence) * a.queries + query) * a.heads + head * group + row - query * group) *
           a.head_dims;
  }
  __device__ __forceinline__ int head_of(int row) const { return head * group + row % group; }
};

}  // namespace lpq::cuda
