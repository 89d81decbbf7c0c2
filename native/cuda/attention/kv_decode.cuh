// Decode attention over packed keys and values (BitDecoding, section IV; TurboMind, section 4.2; formats/kv/spec.md has
// the bytes).
//
// Tokens are the rows of both products, queries of one kv head the 8 columns: S = K Qᵀ reads words of keys by ldmatrix
// as its operand A, O = Vᵀ P words of values by ldmatrix.trans. A word holds R codes, hence R operands: one LOP3 takes
// the two codes of a half2, as subnormal numbers that need no arithmetic. Scales never touch codes: those of keys by
// channel multiply Q, those by token multiply scores, those of values multiply P.
//
// A warp is alone from its first unit to its last: it copies units into its own ring of shared memory (cp.async; keys
// of a unit that comes as soon as keys of one are read, then values), and has maxima, sums and outputs of its own, so
// that no warp waits for another's softmax. What warps of a block found is brought together at the end, and what blocks
// (splits of the tokens) found by the block that ends last. The exact tail goes to the warps of the last split, while
// their first copies are under way.
#pragma once
#include "cuda/attention/kv_values.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// A length or a tail that is none is told, and counts as 0.
__device__ __forceinline__ int kv_checked(const KvDecodeArgs& a, int value, int most, int unit) {
  if (value >= 0 && value <= most && value % unit == 0) return value;
  *a.fault = 1;
  return 0;
}

// What several found of four dims of a query: `total` and `sum` are in units of 2^most.
struct KvJoin {
  float most = -INFINITY, total = 0, sum[4] = {};
  __device__ __forceinline__ void raise(float peak) {
    const float shrink = ex2_approx(most - peak);
    most = peak, total *= shrink;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] *= shrink;
  }
  // Of one whose maximum is at most this one's.
  __device__ __forceinline__ void add(float other_most, float other_total, float4 other) {
    const float share = other_most == -INFINITY ? 0.0f : ex2_approx(other_most - most),
                four[4] = {other.x, other.y, other.z, other.w};
    total = __fmaf_rn(other_total, share, total);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fmaf_rn(four[i], share, sum[i]);
  }
};

__device__ __forceinline__ void kv_write(const KvDecodeArgs& a, long long at, const KvJoin& found) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float y = found.total > 0 ? __fdiv_rn(found.sum[i], found.total) : 0.0f;
    if (a.wide) static_cast<float*>(a.y)[at + i] = y;
    else static_cast<unsigned short*>(a.y)[at + i] = from_float<false>(y);
  }
}

// Brings together what the warps of this block found, and where it is the last of the splits, what those found; writes
// y.
template <class T>
__device__ __forceinline__ void kv_join(const KvDecodeArgs& a, KvState<T>& state, int sequence, int head, int tile,
                                        int split) {
  constexpr int size = kKvRecord<T::kDims>;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5), g = lane >> 2,
            t = lane & 3;
  const int threads = static_cast<int>(blockDim.x), warps = threads >> 5, group = a.heads / a.kv_heads;
  const int columns = group - tile * kKvQueries < kKvQueries ? group - tile * kKvQueries : kKvQueries;
  const int shared_group = T::kForm == KvForm::kFine || T::kForm == KvForm::kTokens ? a.value_group >> 6 : 0;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      state.total[c] += __shfl_xor_sync(0xffffffffu, state.total[c], mask);
#pragma unroll
      for (int v = 0; v < T::kValueGroups; ++v)
        state.zeros[v][c] += __shfl_xor_sync(0xffffffffu, state.zeros[v][c], mask);
    }
#pragma unroll
    for (int v = 1; v < T::kValueGroups; ++v)
      if (v & ((1 << shared_group) - 1)) state.zeros[v][c] = state.zeros[v - 1][c];
  }
  __syncthreads();  // the rings are free
  float* const records = reinterpret_cast<float*>(dynamic_shared());
  float* const record = records + warp * size;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int column = 2 * t + c;
    if (column >= columns) continue;
    if (g == 0) record[column] = state.most[c], record[kKvQueries + column] = state.total[c];
#pragma unroll
    for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
      for (int i = c; i < 4; i += 2)
        record[2 * kKvQueries + column * T::kDims + kv_value_dim<T>(m, g + 8 * (i >> 1))] =
            state.out[m][i] + state.zeros[T::kInWords ? 0 : 16 * m / T::kPart][c];
  }
  __syncthreads();
  const int tile_index = (sequence * a.kv_heads + head) * a.query_tiles + tile;
  float* const all = a.partial + static_cast<long long>(tile_index) * a.splits * size;
  const long long y = (static_cast<long long>(sequence) * a.heads + head * group + tile * kKvQueries) * T::kDims;
  // A thread takes four dims of a column.
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns * T::kDims; i += 4 * threads) {
    const int column = i / T::kDims;
    KvJoin found;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) found.most = fmaxf(found.most, records[w * size + column]);
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const float* const from = records + w * size;
      found.add(from[column], from[kKvQueries + column], *reinterpret_cast<const float4*>(from + 2 * kKvQueries + i));
    }
    if (a.splits == 1) {
      kv_write(a, y + i, found);
      continue;
    }
    float* const to = all + static_cast<long long>(split) * size;
    *reinterpret_cast<float4*>(to + 2 * kKvQueries + i) =
        make_float4(found.sum[0], found.sum[1], found.sum[2], found.sum[3]);
    if (i % T::kDims == 0) to[column] = found.most, to[kKvQueries + column] = found.total;
  }
  if (a.splits == 1) return;
  // Whoever delivers last brings the splits together, in their order.
  unsigned* const last = reinterpret_cast<unsigned*>(records + warps * size);
  __syncthreads();
  if (threadIdx.x == 0) *last = atom_inc_acq_rel(a.counters + tile_index);
  __syncthreads();
  if (*last != static_cast<unsigned>(a.splits - 1)) return;
  if (threadIdx.x == 0) a.counters[tile_index] = 0;
  // Eight splits at a time: their maxima, totals and sums are waited for together.
  constexpr int kAtOnce = 8;
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns * T::kDims; i += 4 * threads) {
    const int column = i / T::kDims;
    KvJoin found;
#pragma unroll 1
    for (int first = 0; first < a.splits; first += kAtOnce) {
      float most[kAtOnce], total[kAtOnce], peak = found.most;
      float4 sum[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const bool there = first + r < a.splits;
        const float* const from = all + static_cast<long long>(first + (there ? r : 0)) * size;
        most[r] = __ldcg(from + column), total[r] = __ldcg(from + kKvQueries + column),
        sum[r] = __ldcg(reinterpret_cast<const float4*>(from + 2 * kKvQueries + i));
        if (!there) most[r] = -INFINITY;
        peak = fmaxf(peak, most[r]);
      }
      if (peak == -INFINITY) continue;
      found.raise(peak);
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) found.add(most[r], total[r], sum[r]);
    }
    kv_write(a, y + i, found);
  }
}

// Blocks: split fastest, then tiles of 8 queries, kv heads, sequences.
template <class T>
__device__ __forceinline__ void kv_decode(const KvDecodeArgs& a) {
  griddepcontrol_wait_and_launch();
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5),
            warps = static_cast<int>(blockDim.x >> 5);
  int index = static_cast<int>(blockIdx.x);
  const int split = index % a.splits;
  index /= a.splits;
  const int tile = index % a.query_tiles, head = index / a.query_tiles % a.kv_heads,
            sequence = index / a.query_tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads, own = tile * kKvQueries + (lane >> 2);
  const int length = kv_checked(a, a.lengths[sequence], a.table_pages * a.page_tokens, T::kInWords ? 1 : T::kTile);
  const int tail = kv_checked(a, a.tails[sequence], a.room, 1);
  KvQuery<T> q;
  const unsigned short* query = a.q + (static_cast<long long>(sequence) * a.heads + head * group + own) * T::kDims;
#pragma unroll
  for (int kc = 0; kc < T::kDims / 16; ++kc)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      q[kc][k] = own < group ? *reinterpret_cast<const uint32_t*>(query + kv_query_dim<T>(kc, k)) : 0;

  // Units of the sequence in runs, one a split, of which warps take every `warps`-th.
  const int units = (length + T::kTile - 1) / T::kTile * T::kTileUnits, run = (units + a.splits - 1) / a.splits;
  const int begin = split * run, end = begin + run < units ? begin + run : units;
  const int* table = a.table + static_cast<long long>(sequence) * a.table_pages;
  const uint32_t ring = shared_address(dynamic_shared()) + static_cast<uint32_t>(warp * a.stages * T::kStage);
  const auto stage = [&](int i) { return KvUnit<T>{ring + static_cast<uint32_t>(i * T::kStage)}; };
  int next = begin + warp;
#ifdef LPQ_KV_WAITING  // of the ablation in docs/internals/kernels/attention.md: a unit is copied when its turn comes
  next = end;
#endif
  for (int i = 0; i < a.stages; ++i, next += warps) {
    KvPlace place{};
    if (next < end) kv_fetch_keys<T>(a, head, place = kv_place<T>(a, table, next), stage(i));
    cp_async_commit();
    if (next < end) kv_fetch_values<T>(a, head, place, stage(i));
    cp_async_commit();
  }
  KvState<T> state;
  if (split == a.splits - 1 && 16 * warp < tail) {
    for (int first = 16 * warp; first < tail; first += 16 * warps) kv_tail<T>(a, sequence, head, first, tail, q, state);
    kv_settle<T, false>(state);
  }
  float sums[4] = {};  // of q, of turbomind alone
  if constexpr (T::kInWords) {
    constexpr uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
#pragma unroll
    for (int kc = 0; kc < T::kDims / 16; ++kc) mma_m16n8k16<false>(sums, ones, q[kc][0], q[kc][1]);
  }
  const int pending = 2 * a.stages - 1;
  int slot = 0;
  for (int n = begin + warp; n < end; n += warps, next += warps) {
    const KvUnit<T> unit = stage(slot);
    KvPlace place{};
    if (next < end) place = kv_place<T>(a, table, next);
    KvScores<T> score = {};
#ifdef LPQ_KV_WAITING
    kv_fetch_keys<T>(a, head, place = kv_place<T>(a, table, n), unit), kv_fetch_values<T>(a, head, place, unit);
    cp_async_commit(), cp_async_wait<0>();
#endif
    cp_async_wait(pending);
    __syncwarp();  // all lanes' copies have come
    if constexpr (T::kInWords) kv_scores_words<T>(a, unit, q, {sums[0], sums[1]}, score);
    else if constexpr (T::kByToken) kv_scores_tokens<T>(a, unit, q, score);
    else kv_scores_channels<T>(a, unit, q, score);
    __syncwarp();  // all lanes have read the keys
    if (next < end) kv_fetch_keys<T>(a, head, place, unit);
    cp_async_commit();
    const int here = length - n * T::kTokens;  // of turbomind; a unit of another form is full
    kv_weigh<T>(here, score, state);
    cp_async_wait(pending);
    __syncwarp();
    kv_add_values<T>(a, unit, here, score, state);
    __syncwarp();
    if (next < end) kv_fetch_values<T>(a, head, place, unit);
    cp_async_commit();
    slot = slot + 1 == a.stages ? 0 : slot + 1;
  }
  cp_async_wait<0>();
  kv_settle<T, true>(state);
  kv_join<T>(a, state, sequence, head, tile, split);
}

#define LPQ_KV_DECODE(keys, values, dims, form, name)                                         \
  extern "C" __global__ void __launch_bounds__(                                               \
      32 * lpq::cuda::KvShape<keys, values, dims, lpq::cuda::KvForm::form>::kMostWarps, 1)    \
      lpq_kv_decode_##name##_##dims(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {      \
    lpq::cuda::kv_decode<lpq::cuda::KvShape<keys, values, dims, lpq::cuda::KvForm::form>>(a); \
  }

}  // namespace lpq::cuda
