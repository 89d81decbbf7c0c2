// What a block of cached.cuh owns, and the copies of a warp: keys and values to its ring.
#pragma once
#include "cuda/attention/cached_shape.h"
#include "cuda/ptx/cp_async.cuh"

namespace lpq::cuda {

// Where a lane's copies of a stage come from and go to: (lane, i) -> (token lane / chunks + i * kStep, chunk lane %
// chunks).
template <class T>
struct CachedLane {
  static constexpr int kChunks = T::kDims / 8, kStep = 32 / kChunks, kCopies = kCachedTokens / kStep;
  const unsigned short* from;  // of the lane's chunk in the sequence's token 0
  int end;                     // of its tokens; 0 where the chunk lies beyond a row's width
  // Sixteen tokens from `first` on; those from the end on are 0.
  __device__ __forceinline__ void fetch(int stride, int first, uint32_t to) const {
    const int lane = static_cast<int>(threadIdx.x & 31), token = lane / kChunks, left = end - first - token;
    const unsigned short* at = from + static_cast<long long>(first + token) * stride;
    const uint32_t place = to + static_cast<uint32_t>(token * T::kDims * 2 + (((lane % kChunks) ^ token) << 4));
#pragma unroll
    for (int i = 0; i < kCopies; ++i, at += kStep * stride)
      cp_async_16(
          (place ^ static_cast<uint32_t>((kStep * i & 7) << 4)) + static_cast<uint32_t>(kStep * i * T::kDims * 2),
          left > kStep * i ? at : from, left > kStep * i ? 16 : 0);
  }
};

// What a block owns: a tile of columns of one sequence and kv head, and a split of the tokens that they see. Blocks:
// split fastest, then tiles of 8 columns, kv heads, sequences.
struct CachedOwn {
  int index, split, tile, head, sequence;  // index: of the tile among all
  int start, fresh, total, slot;  // of the sequence: its first new token, its new tokens, all of them, its rows
  int columns;
  __device__ __forceinline__ CachedOwn(const CachedArgs& a) {
    index = static_cast<int>(blockIdx.x) / a.splits, split = static_cast<int>(blockIdx.x) - index * a.splits;
    tile = 0, head = index, sequence = 0;
    if (a.query_tiles > 1) head = index / a.query_tiles, tile = index - head * a.query_tiles;
    if (head >= a.kv_heads) sequence = head / a.kv_heads, head -= sequence * a.kv_heads;
    start = a.starts[sequence], fresh = a.starts[sequence + 1] - start, total = a.totals[sequence],
    slot = a.slots[sequence];
    const int left = fresh * a.group - tile * kCachedQueries;
    columns = left < kCachedQueries ? left : kCachedQueries;
  }
  // A column's new token, of its sequence.
  __device__ __forceinline__ int turn_of(int column, int group) const {
    return fresh == 1 ? 0 : (tile * kCachedQueries + column) / group;
  }
  __device__ __forceinline__ int past() const { return total - fresh; }
};

// Sixteens of tokens that some column sees, in runs, one a split.
struct CachedRun {
  int end, begin, stop;  // end: of tokens; the others count sixteens
  __device__ __forceinline__ CachedRun(const CachedArgs& a, const CachedOwn& own) {
    end = own.past() + own.turn_of(own.columns - 1, a.group) + 1;
    int low = 0;
    if (a.window > 0) {
      const int first_seen = own.past() + own.turn_of(0, a.group) - a.window + 1;
      low = first_seen > 0 ? first_seen / kCachedTokens : 0;
    }
    const int units = (end + kCachedTokens - 1) / kCachedTokens - low, run = (units + a.splits - 1) / a.splits;
    begin = low + own.split * run, stop = begin + run < low + units ? begin + run : low + units;
  }
};

// A warp's copies: sixteens of keys and values into the stages of its ring.
template <class T>
struct CachedProducer {
  CachedLane<T> keys, values;
  int key_stride, value_stride;
  uint32_t ring;
  __device__ __forceinline__ CachedProducer(const CachedArgs& a, const CachedOwn& own, int end, uint32_t ring)
      : ring(ring) {
    key_stride = a.kv_heads * a.head_dim, value_stride = a.kv_heads * a.value_dim;
    const int chunk = static_cast<int>(threadIdx.x & 31) % CachedLane<T>::kChunks * 8;
    const long long first_row = static_cast<long long>(own.slot) * a.rows;
    keys = {a.keys + first_row * key_stride + own.head * a.head_dim + chunk, chunk < a.head_dim ? end : 0};
    values = {a.values + first_row * value_stride + own.head * a.value_dim + chunk, chunk < a.value_dim ? end : 0};
  }
  __device__ __forceinline__ void fetch(int unit, int stage) const {
    const uint32_t to = ring + static_cast<uint32_t>(stage * T::kStage);
    keys.fetch(key_stride, unit * kCachedTokens, to);
    values.fetch(value_stride, unit * kCachedTokens, to + T::kSide);
  }
};

}  // namespace lpq::cuda
