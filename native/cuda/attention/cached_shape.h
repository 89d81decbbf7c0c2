// What the kernel of attention over kept rows does at once, in numbers: for the host that launches it, and the kernel.
#pragma once

namespace lpq::cuda {

// All a launch is told. Rows are of 16-bit floats, all heads of a token one after another.
struct CachedArgs {
  const void* q;                        // [T, heads, head_dim], f32 (wide_q) or 16 bits
  const unsigned short *keys, *values;  // [S, rows, kv_heads, head_dim or value_dim]
  const int *starts, *slots, *totals;   // [B+1], [B], [B]
  const void* sinks;                    // null, or a logit a head, of a type as load_any() reads it
  float* partial;                       // [tiles, splits]: a record is most[8], total[8], sums[8][D]
  unsigned* counters;                   // [tiles], 0 before and after
  unsigned* fault;                      // set where starts, slots or totals do not fit
  unsigned short* y;                    // [T, heads, value_dim]
  int sequences, tokens, slots_count, rows, heads, kv_heads, group, head_dim, value_dim, window, query_tiles, splits,
      wide_q, sinks_type;
  int early;  // rows older than the new tokens, starts, slots and totals may be read while the operation before runs
  float scale, cap;  // of scores, times log2 e
};

constexpr int kCachedQueries = 8;    // the columns of one mma: pairs of a new token and a query head of the kv head
constexpr int kCachedTokens = 16;    // of a stage
constexpr int kCachedSplits = 1024;  // at most
template <int DIMS>
constexpr int kCachedRecord = 2 * kCachedQueries + kCachedQueries * DIMS;  // floats

// Two blocks fit a multiprocessor of 9.0, one those of 8.6 and 8.9.
template <int DIMS>
struct CachedShape {
  static constexpr int kDims = DIMS, kWarps = DIMS == 256 ? 3 : 4, kStages = DIMS == 64 ? 4 : DIMS == 128 ? 3 : 2;
  static constexpr int kSide = kCachedTokens * kDims * 2, kStage = 2 * kSide;
  static constexpr int kTable = kWarps * kStages * kStage, kShared = kTable + 128;  // rings, and what columns are
  static_assert(kWarps * (2 * kCachedQueries + kCachedQueries * (kDims + 4)) * 4 <= kTable && kShared <= 99 << 10);
};

}  // namespace lpq::cuda
