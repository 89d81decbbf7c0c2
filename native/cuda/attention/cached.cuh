// Attention of the newest tokens of sequences over rows of keys and values that are kept as 16-bit floats (flash
// decoding: Dao et al. 2023).
//
// As in kv_decode.cuh tokens are the rows of both products and queries the 8 columns: S = K Qᵀ, O = Vᵀ P. A column is a
// pair of a new token and a query head of the kv head, so that the heads of a group share what is read. A warp takes
// every kWarps-th sixteen of tokens of its split through its own ring of shared memory, with maxima, sums and outputs
// of its own; warps of a block are brought together at the end, and splits by the block that ends last, in their order.
//
//   K, V in shared memory: (token, chunk of 8 dims) -> byte token * 2 DIMS + ((chunk ^ token % 8) << 4)
//   A of S, by ldmatrix:       (lane, reg) -> (token lane/4 + 8 (reg % 2), dim 16 step + 2 (lane % 4) + 8 (reg / 2))
//   A of O, by ldmatrix.trans: (lane, reg) -> (dim 16 step + lane/4 + 8 (reg % 2), token 2 (lane % 4) + 8 (reg / 2))
//   S, O: (lane, i) -> (row lane/4 + 8 (i / 2), column 2 (lane % 4) + i % 2)
#pragma once
#include "cuda/attention/cached_shape.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

template <class T>
struct CachedState {
  float most[2] = {-INFINITY, -INFINITY},
        total[2] = {0, 0};  // of columns 2 (lane % 4) and the next; totals are parts until the end
  float out[T::kDims / 16][4] = {};
};

// What a column is: of the table behind the rings.
struct CachedColumn {
  int token;  // it sees tokens of its sequence up to this one
  int row;    // of q and y
};

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

// Eight numbers of q times scale, rounded to 16 bits.
template <bool BF>
__device__ __forceinline__ uint4 cached_queries(const CachedArgs& a, long long at) {
  uint32_t words[4];
  if (a.wide_q) {
    const float4* const from = reinterpret_cast<const float4*>(static_cast<const float*>(a.q) + at);
    const float4 low = from[0], high = from[1];
    words[0] = cvt_x2<BF>(low.x * a.scale, low.y * a.scale), words[1] = cvt_x2<BF>(low.z * a.scale, low.w * a.scale);
    words[2] = cvt_x2<BF>(high.x * a.scale, high.y * a.scale),
    words[3] = cvt_x2<BF>(high.z * a.scale, high.w * a.scale);
  } else {
    const uint4 eight = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(a.q) + at);
    const uint32_t from[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = cvt_x2<BF>(to_float<BF>(static_cast<unsigned short>(from[i])) * a.scale,
                            to_float<BF>(static_cast<unsigned short>(from[i] >> 16)) * a.scale);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

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

// Queries as B operands, and what the columns are as a table. Until then queries wait in the first warp's last stage,
// which is free: (column, chunk of 8 dims) -> byte column * 2 DIMS + ((chunk ^ column) << 4).
template <class T, bool BF>
__device__ __forceinline__ void cached_columns(const CachedArgs& a, const CachedOwn& own, uint32_t base,
                                               CachedColumn* table, uint32_t (&q)[T::kDims / 16][2]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  const uint32_t queries = base + static_cast<uint32_t>((T::kStages - 1) * T::kStage);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < D; i += 32 * T::kWarps) {
    const int column = i / (D / 8), of = i % (D / 8) * 8, turn = own.turn_of(column, a.group),
              first = own.tile * kCachedQueries + column - turn * a.group;
    const int row = (own.start + turn) * a.heads + own.head * a.group + first;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (column < own.columns && of < a.head_dim)
      eight = cached_queries<BF>(a, static_cast<long long>(row) * a.head_dim + of);
    st_shared_v4(queries + static_cast<uint32_t>(column * D * 2 + (((of >> 3) ^ column) << 4)), eight);
    // A column that is none sees nothing.
    if (of == 0) table[column].token = column < own.columns ? own.past() + turn : -1, table[column].row = row;
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < D / 16; step += 2) {
    uint32_t four[4];
    ldmatrix_x4(four, (queries + static_cast<uint32_t>((lane & 7) * D * 2 + ((matrix ^ (lane & 7)) << 4))) ^
                          static_cast<uint32_t>(step << 5));
    q[step][0] = four[0], q[step][1] = four[1], q[step + 1][0] = four[2], q[step + 1][1] = four[3];
  }
}

// S = K Qᵀ of a stage; of columns that see up to own[0] and own[1], -infinity for what they do not see.
template <class T, bool BF>
__device__ __forceinline__ void cached_scores(const CachedArgs& a, uint32_t stage, int unit,
                                              const uint32_t (&q)[T::kDims / 16][2], const int (&own)[2],
                                              float (&score)[4]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  const uint32_t key_rows =
      stage + static_cast<uint32_t>(((lane & 7) + 8 * (matrix & 1)) * D * 2 + (((matrix >> 1) ^ (lane & 7)) << 4));
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t k[4];
    ldmatrix_x4(k, key_rows ^ static_cast<uint32_t>(step << 5));
    mma_m16n8k16<BF>(score, k, q[step][0], q[step][1]);
  }
  if (a.cap > 0)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] = a.cap * tanhf(score[i] / a.cap);
  const int token = unit * kCachedTokens + (lane >> 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = token + 8 * (i >> 1), last = own[i & 1];
    if (from > last || (a.window > 0 && from <= last - a.window)) score[i] = -INFINITY;
  }
}

// Takes a stage's scores into maxima and totals, rescales what is there, and leaves their shares; `first`: nothing is
// there yet.
template <class T>
__device__ __forceinline__ void cached_softmax(CachedState<T>& state, float (&score)[4], bool first) {
  float peak[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int i = 0; i < 4; ++i) peak[i & 1] = fmaxf(peak[i & 1], score[i]);
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
  if (first) {
    state.most[0] = peak[0], state.most[1] = peak[1];  // sums are still 0
  } else if (__any_sync(0xffffffffu, peak[0] > state.most[0] || peak[1] > state.most[1])) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float shrink = peak[c] == state.most[c] ? 1.0f : ex2_approx(state.most[c] - peak[c]);
      state.most[c] = peak[c], state.total[c] *= shrink;
#pragma unroll
      for (int m = 0; m < T::kDims / 16; ++m) state.out[m][c] *= shrink, state.out[m][c + 2] *= shrink;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Columns that have seen nothing yet have a maximum of -infinity, and no weight.
    score[i] = score[i] == -INFINITY ? 0.0f : ex2_approx(score[i] - state.most[i & 1]);
    state.total[i & 1] += score[i];
  }
}

// O += Vᵀ P of a stage.
template <class T, bool BF>
__device__ __forceinline__ void cached_outputs(CachedState<T>& state, uint32_t stage, const float (&share)[4]) {
  constexpr int D = T::kDims;
  const int lane = static_cast<int>(threadIdx.x & 31), matrix = lane >> 3;
  uint32_t weights[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) weights[k] = movmatrix_trans(cvt_x2<BF>(share[2 * k], share[2 * k + 1]));
  const uint32_t value_rows = stage + static_cast<uint32_t>(T::kSide + ((lane & 7) + 8 * (matrix >> 1)) * D * 2 +
                                                            (((matrix & 1) ^ (lane & 7)) << 4));
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, value_rows ^ static_cast<uint32_t>(step << 5));
    mma_m16n8k16<BF>(state.out[step], v, weights[0], weights[1]);
  }
}

// Four dims of a column into y.
template <bool BF>
__device__ __forceinline__ void cached_write(const CachedArgs& a, const CachedColumn& column, int d, float4 sum,
                                             float parts) {
  if (d >= a.value_dim) return;
  if (!(parts > 0)) sum = make_float4(0, 0, 0, 0), parts = 1;
  uint2* const to = reinterpret_cast<uint2*>(a.y + static_cast<long long>(column.row) * a.value_dim + d);
  *to = make_uint2(cvt_x2<BF>(__fdiv_rn(sum.x, parts), __fdiv_rn(sum.y, parts)),
                   cvt_x2<BF>(__fdiv_rn(sum.z, parts), __fdiv_rn(sum.w, parts)));
}

// Brings the warps of a block together: into y where there is one split, else into its record of `all`.
template <class T, bool BF>
__device__ __forceinline__ void cached_join_warps(const CachedArgs& a, const CachedOwn& own,
                                                  const CachedState<T>& state, float* records,
                                                  const CachedColumn* table, float* all) {
  constexpr int D = T::kDims;
  // A warp's record: most[8], total[8], sums[8][D + 4], so that its lanes write to banks of their own.
  constexpr int kColumn = D + 4, kOwn = 2 * kCachedQueries + kCachedQueries * kColumn;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, g = lane >> 2, t = lane & 3;
  float* const record = records + (thread >> 5) * kOwn;
  if (g == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c) record[2 * t + c] = state.most[c], record[kCachedQueries + 2 * t + c] = state.total[c];
#pragma unroll
  for (int m = 0; m < D / 16; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      record[2 * kCachedQueries + (2 * t + (i & 1)) * kColumn + 16 * m + g + 8 * (i >> 1)] = state.out[m][i];
  __syncthreads();
  // A thread takes four dims of a column.
#pragma unroll 1
  for (int i = thread; i < own.columns * (D / 4); i += 32 * T::kWarps) {
    const int column = i / (D / 4), d = i % (D / 4) * 4;
    float most = -INFINITY, parts = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) most = fmaxf(most, records[w * kOwn + column]);
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) {
      const float* const from = records + w * kOwn;
      const float share = from[column] == -INFINITY ? 0.0f : ex2_approx(from[column] - most);
      const float4 four = *reinterpret_cast<const float4*>(from + 2 * kCachedQueries + column * kColumn + d);
      parts = __fmaf_rn(from[kCachedQueries + column], share, parts);
      sum = make_float4(__fmaf_rn(four.x, share, sum.x), __fmaf_rn(four.y, share, sum.y),
                        __fmaf_rn(four.z, share, sum.z), __fmaf_rn(four.w, share, sum.w));
    }
    if (a.splits == 1) {
      cached_write<BF>(a, table[column], d, sum, parts);
      continue;
    }
    float* const to = all + static_cast<long long>(own.split) * kCachedRecord<D>;
    *reinterpret_cast<float4*>(to + 2 * kCachedQueries + column * D + d) = sum;
    if (d == 0) to[column] = most, to[kCachedQueries + column] = parts;
  }
}

// The last block adds up all splits in their order, eight at a time: their maxima, totals and sums are waited for
// together.
template <class T, bool BF>
__device__ __forceinline__ void cached_fixup(const CachedArgs& a, int columns, const CachedColumn* table,
                                             const float* all) {
  constexpr int D = T::kDims, kAtOnce = 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < columns * (D / 4); i += 32 * T::kWarps) {
    const int column = i / (D / 4), d = i % (D / 4) * 4;
    float most = -INFINITY, parts = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = 0; first < a.splits; first += kAtOnce) {
      const float* const from = all + static_cast<long long>(first) * kCachedRecord<D>;
      float mosts[kAtOnce], totals[kAtOnce], peak = most;
      float4 four[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const bool there = first + r < a.splits;
        const float* const one = from + (there ? r * kCachedRecord<D> : 0);
        mosts[r] = __ldcg(one + column), totals[r] = __ldcg(one + kCachedQueries + column),
        four[r] = __ldcg(reinterpret_cast<const float4*>(one + 2 * kCachedQueries + column * D + d));
        if (!there) mosts[r] = -INFINITY;
        peak = fmaxf(peak, mosts[r]);
      }
      if (peak == -INFINITY) continue;
      const float shrink = ex2_approx(most - peak);
      most = peak, parts *= shrink, sum = make_float4(sum.x * shrink, sum.y * shrink, sum.z * shrink, sum.w * shrink);
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const float share = ex2_approx(mosts[r] - peak);  // 0 of those that are none, or saw nothing
        parts = __fmaf_rn(totals[r], share, parts);
        sum = make_float4(__fmaf_rn(four[r].x, share, sum.x), __fmaf_rn(four[r].y, share, sum.y),
                          __fmaf_rn(four[r].z, share, sum.z), __fmaf_rn(four[r].w, share, sum.w));
      }
    }
    cached_write<BF>(a, table[column], d, sum, parts);
  }
}

// At short contexts a warp passes here once or twice, and its instructions, most of which have to be fetched, are what
// it takes: so whatever is not per token is by whole words, columns are found once and told by a table, and what comes
// again is a loop.
template <class T, bool BF>
__device__ __forceinline__ void cached_attention(const CachedArgs& a) {
  griddepcontrol_wait_and_launch();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const CachedOwn own(a);
  // Tokens before the first sequence or behind the last would be left as they are in y.
  const bool covers =
      (own.sequence > 0 || own.start == 0) && (own.sequence < a.sequences - 1 || own.start + own.fresh == a.tokens);
  if (!covers || own.start < 0 || own.fresh < 0 || own.start + own.fresh > a.tokens || own.total < own.fresh ||
      own.total > a.rows || own.slot < 0 || own.slot >= a.slots_count ||
      own.fresh * a.group > a.query_tiles * kCachedQueries) {
    if (thread == 0) *a.fault = 1;
    return;
  }
  if (own.columns <= 0) return;
  unsigned char* const shared = dynamic_shared();
  CachedColumn* const table = reinterpret_cast<CachedColumn*>(shared + T::kTable);
  const CachedRun run(a, own);
  const uint32_t base = shared_address(shared);
  const CachedProducer<T> producer(a, own, run.end, base + static_cast<uint32_t>(warp * T::kStages * T::kStage));
  // The first copies are under way while queries come.
  int next = run.begin + warp;
#pragma unroll 1
  for (int i = 0; i < T::kStages - 1; ++i) {
    if (next < run.stop) producer.fetch(next, i);
    cp_async_commit();
    next += T::kWarps;
  }
  uint32_t q[T::kDims / 16][2];
  cached_columns<T, BF>(a, own, base, table, q);
  const int seen[2] = {table[2 * t].token, table[2 * t + 1].token};
  __syncthreads();  // the stage is free again

  CachedState<T> state;
  if (a.sinks && own.split == 0 && warp == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (seen[c] >= 0) {
        state.most[c] = load_any(a.sinks, a.sinks_type, table[2 * t + c].row % a.heads) * 1.44269504f;
        state.total[c] = g == 0 ? 1.0f : 0.0f;
      }
  int slot_of_ring = 0;
#pragma unroll 1
  for (int unit = run.begin + warp; unit < run.stop; unit += T::kWarps) {
    cp_async_wait<T::kStages - 2>();
    __syncwarp();  // all lanes' copies have come, and the stage before this one has been read
    if (next < run.stop) producer.fetch(next, slot_of_ring == 0 ? T::kStages - 1 : slot_of_ring - 1);
    cp_async_commit();
    next += T::kWarps;
    const uint32_t stage = producer.ring + static_cast<uint32_t>(slot_of_ring * T::kStage);
    slot_of_ring = slot_of_ring + 1 == T::kStages ? 0 : slot_of_ring + 1;
    float score[4] = {};
    cached_scores<T, BF>(a, stage, unit, q, seen, score);
    cached_softmax(state, score, unit == run.begin + warp && !a.sinks);
    cached_outputs<T, BF>(state, stage, score);
  }
  cp_async_wait<0>();
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) state.total[c] += __shfl_xor_sync(0xffffffffu, state.total[c], mask);
  __syncthreads();  // the rings are free
  float* const all = a.partial + static_cast<long long>(own.index) * a.splits * kCachedRecord<T::kDims>;
  cached_join_warps<T, BF>(a, own, state, reinterpret_cast<float*>(shared), table, all);
  if (a.splits == 1) return;
  unsigned* const last = reinterpret_cast<unsigned*>(shared + T::kTable + sizeof(CachedColumn) * kCachedQueries);
  __syncthreads();
  if (thread == 0) *last = atom_inc_acq_rel(a.counters + own.index);
  __syncthreads();
  if (*last != static_cast<unsigned>(a.splits - 1)) return;
  if (thread == 0) a.counters[own.index] = 0;
  cached_fixup<T, BF>(a, own.columns, table, all);
}

#define LPQ_CACHED(name, bf, dims)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::CachedShape<dims>::kWarps)     \
      lpq_cached_attention_##name##_##dims(const __grid_constant__ lpq::cuda::CachedArgs a) { \
    lpq::cuda::cached_attention<lpq::cuda::CachedShape<dims>, bf>(a);                         \
  }

}  // namespace lpq::cuda
