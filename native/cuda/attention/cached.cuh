// Attention of the newest tokens of sequences over rows of keys and values that are kept as 16-bit floats (flash decoding: Dao et al. 2023).
//
// As in kv_decode.cuh tokens are the rows of both products and queries the 8 columns: S = K Qᵀ, O = Vᵀ P. A column is a pair of a
// new token and a query head of the kv head, so that the heads of a group share what is read. A warp takes every kWarps-th sixteen of
// tokens of its split through its own ring of shared memory, with maxima, sums and outputs of its own; warps of a block are brought
// together at the end, and splits by the block that ends last, in their order.
//
//   K, V in shared memory: (token, chunk of 8 dims) -> byte token * 2 DIMS + ((chunk ^ token % 8) << 4)
//   A of S, by ldmatrix:       (lane, reg) -> (token lane/4 + 8 (reg % 2), dim 16 step + 2 (lane % 4) + 8 (reg / 2))
//   A of O, by ldmatrix.trans: (lane, reg) -> (dim 16 step + lane/4 + 8 (reg % 2), token 2 (lane % 4) + 8 (reg / 2))
//   S, O: (lane, i) -> (row lane/4 + 8 (i / 2), column 2 (lane % 4) + i % 2)
#pragma once
#include "cuda/attention/cached_shape.h"
#ifdef LPQ_SIMT
#include LPQ_SIMT
#else
#include "cuda/attention/cached_ptx.cuh"
#endif
#include "cuda/follow.cuh"

namespace lpq::cuda {

template <class T>
struct CachedState {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};  // of columns 2 (lane % 4) and the next; totals are parts until the end
  float out[T::kDims / 16][4] = {};
};

// Sixteen tokens from `first` on, to a stage; those from `end` on, and dims beyond a row's width, are 0. One group of copies.
template <class T>
__device__ __forceinline__ void cached_fetch(const unsigned short* rows, int stride, int width, int first, int end, uint32_t to) {
  constexpr int chunks = T::kDims / 8;
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int i = lane; i < kCachedTokens * chunks; i += 32) {
    const int token = i / chunks, chunk = i % chunks;
    const bool there = first + token < end && chunk * 8 < width;
    const unsigned short* from = rows + (there ? static_cast<long long>(first + token) * stride + chunk * 8 : 0);
    copy16_async(to + static_cast<uint32_t>(token * T::kDims * 2 + ((chunk ^ (token & 7)) << 4)), from, there ? 16 : 0);
  }
}

// Blocks: split fastest, then tiles of 8 columns, kv heads, sequences.
template <class T, bool BF>
__device__ __forceinline__ void cached_attention(const CachedArgs& a) {
  follow();
  constexpr int D = T::kDims, size = kCachedRecord<D>;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5), g = lane >> 2, t = lane & 3, matrix = lane >> 3;
  int index = static_cast<int>(blockIdx.x);
  const int split = index % a.splits;
  index /= a.splits;
  const int tile_index = index, tile = index % a.query_tiles, head = index / a.query_tiles % a.kv_heads, sequence = index / a.query_tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads, start = a.starts[sequence], fresh = a.starts[sequence + 1] - start, total = a.totals[sequence], slot = a.slots[sequence];
  // Tokens before the first sequence or behind the last would be left as they are in y.
  const bool covers = (sequence > 0 || start == 0) && (sequence < a.sequences - 1 || start + fresh == a.tokens);
  if (!covers || start < 0 || fresh < 0 || start + fresh > a.tokens || total < fresh || total > a.rows || slot < 0 || slot >= a.slots_count || fresh * group > a.query_tiles * kCachedQueries) {
    if (threadIdx.x == 0) *a.fault = 1;
    return;
  }
  const int columns = fresh * group - tile * kCachedQueries < kCachedQueries ? fresh * group - tile * kCachedQueries : kCachedQueries;
  if (columns <= 0) return;
  // The token of column c, counted in its sequence, sees those up to itself.
  const auto token_of = [&](int c) { return total - fresh + (tile * kCachedQueries + c) / group; };
  const auto row_of = [&](int c) { return (start + (tile * kCachedQueries + c) / group) * a.heads + head * group + (tile * kCachedQueries + c) % group; };

  // Sixteens of tokens that some column sees, in runs, one a split.
  const int end = token_of(columns - 1) + 1, first_seen = a.window > 0 && token_of(0) - a.window + 1 > 0 ? token_of(0) - a.window + 1 : 0;
  const int low = first_seen / kCachedTokens, units = (end + kCachedTokens - 1) / kCachedTokens - low, run = (units + a.splits - 1) / a.splits;
  const int begin = low + split * run, stop = begin + run < low + units ? begin + run : low + units;
  const int key_stride = a.kv_heads * a.head_dim, value_stride = a.kv_heads * a.value_dim;
  const unsigned short* keys = a.keys + static_cast<long long>(slot) * a.rows * key_stride + head * a.head_dim;
  const unsigned short* values = a.values + static_cast<long long>(slot) * a.rows * value_stride + head * a.value_dim;
  unsigned char* const shared = attention_shared();
  const uint32_t ring = shared_address(shared) + static_cast<uint32_t>(warp * T::kStages * T::kStage);
  const auto fetch = [&](int unit, int stage) {
    const uint32_t to = ring + static_cast<uint32_t>(stage * T::kStage);
    cached_fetch<T>(keys, key_stride, a.head_dim, unit * kCachedTokens, end, to);
    cached_fetch<T>(values, value_stride, a.value_dim, unit * kCachedTokens, end, to + T::kSide);
  };
  // The first copies are under way while queries come.
  int next = begin + warp;
#pragma unroll
  for (int i = 0; i < T::kStages - 1; ++i) {
    if (next < stop) fetch(next, i);
    commit_copies();
    next += T::kWarps;
  }
  uint32_t q[D / 16][2];
#pragma unroll
  for (int step = 0; step < D / 16; ++step)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float pair[2] = {0, 0};
      if (g < columns)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int d = 16 * step + 8 * k + 2 * t + i;
          if (d >= a.head_dim) continue;
          const long long at = static_cast<long long>(row_of(g)) * a.head_dim + d;
          pair[i] = a.wide_q ? static_cast<const float*>(a.q)[at] : number_of<BF>(static_cast<const unsigned short*>(a.q)[at]);
          pair[i] *= a.scale;
        }
      q[step][k] = word_of<BF>(pair[0], pair[1]);
    }

  CachedState<T> state;
  if (a.sinks && split == 0 && warp == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (2 * t + c < columns) {
        state.most[c] = load_any(a.sinks, a.sinks_type, row_of(2 * t + c) % a.heads) * 1.44269504f;
        state.total[c] = g == 0 ? 1.0f : 0.0f;
      }
  int slot_of_ring = 0;
  for (int unit = begin + warp; unit < stop; unit += T::kWarps) {
    wait_copies<T::kStages - 2>();
    __syncwarp();  // all lanes' copies have come, and the stage before this one has been read
    if (next < stop) fetch(next, slot_of_ring == 0 ? T::kStages - 1 : slot_of_ring - 1);
    commit_copies();
    next += T::kWarps;
    const uint32_t stage = ring + static_cast<uint32_t>(slot_of_ring * T::kStage);
    slot_of_ring = slot_of_ring + 1 == T::kStages ? 0 : slot_of_ring + 1;
    const auto chunk_at = [&](uint32_t side, int token, int chunk) { return side + static_cast<uint32_t>(token * D * 2 + ((chunk ^ (token & 7)) << 4)); };
    float score[4] = {};
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t k[4];
      load_matrices(k, chunk_at(stage, (lane & 7) + 8 * (matrix & 1), 2 * step + (matrix >> 1)));
      multiply<BF>(score, k, q[step][0], q[step][1]);
    }
    float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = unit * kCachedTokens + g + 8 * (i >> 1), own = token_of(2 * t + (i & 1));
      if (a.cap > 0) score[i] = a.cap * tanhf(score[i] / a.cap);
      if (token > own || (a.window > 0 && token <= own - a.window) || 2 * t + (i & 1) >= columns) score[i] = -INFINITY;
      peak[i & 1] = fmaxf(peak[i & 1], score[i]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
    if (any_lane(peak[0] > state.most[0] || peak[1] > state.most[1]))
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float shrink = peak[c] == state.most[c] ? 1.0f : power_of_two(state.most[c] - peak[c]);
        state.most[c] = peak[c], state.total[c] *= shrink;
#pragma unroll
        for (int m = 0; m < D / 16; ++m) state.out[m][c] *= shrink, state.out[m][c + 2] *= shrink;
      }
    uint32_t weights[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Columns that have seen nothing yet have a maximum of -infinity, and no weight.
      score[i] = score[i] == -INFINITY ? 0.0f : power_of_two(score[i] - state.most[i & 1]);
      state.total[i & 1] += score[i];
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) weights[k] = turn_matrix(word_of<BF>(score[2 * k], score[2 * k + 1]));
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t v[4];
      load_matrices_turned(v, chunk_at(stage + T::kSide, (lane & 7) + 8 * (matrix >> 1), 2 * step + (matrix & 1)));
      multiply<BF>(state.out[step], v, weights[0], weights[1]);
    }
  }
  wait_copies<0>();
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) state.total[c] += __shfl_xor_sync(0xffffffffu, state.total[c], mask);
  __syncthreads();  // the rings are free
  float* const records = reinterpret_cast<float*>(shared);
  float* const record = records + warp * size;
  if (g == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c) record[2 * t + c] = state.most[c], record[kCachedQueries + 2 * t + c] = state.total[c];
#pragma unroll
  for (int m = 0; m < D / 16; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) record[2 * kCachedQueries + (2 * t + (i & 1)) * D + 16 * m + g + 8 * (i >> 1)] = state.out[m][i];
  __syncthreads();
  float* const all = a.partial + static_cast<long long>(tile_index) * a.splits * size;
  const auto write = [&](int column, int d, float sum, float parts) {
    if (column < columns && d < a.value_dim) a.y[static_cast<long long>(row_of(column)) * a.value_dim + d] = bits_of<BF>(parts > 0 ? quotient(sum, parts) : 0.0f);
  };
  for (int i = static_cast<int>(threadIdx.x); i < columns * D; i += 32 * T::kWarps) {
    const int column = i / D;
    float most = -INFINITY, parts = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) most = fmaxf(most, records[w * size + column]);
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) {
      const float* from = records + w * size;
      const float share = from[column] == -INFINITY ? 0.0f : power_of_two(from[column] - most);
      parts = fused(from[kCachedQueries + column], share, parts);
      sum = fused(from[2 * kCachedQueries + i], share, sum);
    }
    if (a.splits == 1) {
      write(column, i % D, sum, parts);
      continue;
    }
    float* const to = all + static_cast<long long>(split) * size;
    to[2 * kCachedQueries + i] = sum;
    if (i % D == 0) to[column] = most, to[kCachedQueries + column] = parts;
  }
  if (a.splits == 1) return;
  unsigned* const last = reinterpret_cast<unsigned*>(records + T::kWarps * size);
  __syncthreads();
  if (threadIdx.x == 0) *last = count_up(a.counters + tile_index);
  __syncthreads();
  if (*last != static_cast<unsigned>(a.splits - 1)) return;
  __syncthreads();  // before what all have read is written over
  if (threadIdx.x == 0) a.counters[tile_index] = 0;
  // Maxima and totals of all splits at once, then shares, in shared memory; so that nothing waits for memory but once, and then for sums.
  float* const shares = records;
  float* const totals = shares + a.splits * kCachedQueries;
  for (int i = static_cast<int>(threadIdx.x); i < a.splits * kCachedQueries; i += 32 * T::kWarps) {
    const float* from = all + static_cast<long long>(i / kCachedQueries) * size + i % kCachedQueries;
    const bool there = i % kCachedQueries < columns;
    shares[i] = there ? load_fresh(from) : -INFINITY, totals[i] = there ? load_fresh(from + kCachedQueries) : 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    // Lanes of a column are 8 apart.
    float most = -INFINITY;
    for (int i = lane; i < a.splits * kCachedQueries; i += 32) most = fmaxf(most, shares[i]);
#pragma unroll
    for (int mask = kCachedQueries; mask < 32; mask *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    for (int i = lane; i < a.splits * kCachedQueries; i += 32) shares[i] = shares[i] == -INFINITY ? 0.0f : power_of_two(shares[i] - most);
  }
  __syncthreads();
  constexpr int kItems = 4, kThreads = 32 * T::kWarps;
  for (int first = static_cast<int>(threadIdx.x); first < columns * D; first += kItems * kThreads) {
    float parts[kItems] = {}, sum[kItems] = {};
#pragma unroll(D == 64 ? 4 : 8)
    for (int r = 0; r < a.splits; ++r) {
      const float* from = all + static_cast<long long>(r) * size + 2 * kCachedQueries;
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int i = first + k * kThreads, column = i / D;
        if (i >= columns * D) continue;
        const float share = shares[r * kCachedQueries + column];
        parts[k] = fused(totals[r * kCachedQueries + column], share, parts[k]);
        sum[k] = fused(load_fresh(from + i), share, sum[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = first + k * kThreads;
      if (i < columns * D) write(i / D, i % D, sum[k], parts[k]);
    }
  }
}

#define LPQ_CACHED(name, bf, dims)                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::CachedShape<dims>::kWarps)                                                              \
      lpq_cached_attention_##name##_##dims(const __grid_constant__ lpq::cuda::CachedArgs a) {                                                          \
    lpq::cuda::cached_attention<lpq::cuda::CachedShape<dims>, bf>(a);                                                                                  \
  }

}  // namespace lpq::cuda
