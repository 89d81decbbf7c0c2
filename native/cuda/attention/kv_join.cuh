// What becomes of the sums of kv_decode.cuh: warps, then splits, brought together; y.
#pragma once
#include "cuda/attention/found.cuh"
#include "cuda/attention/kv_values.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

// Four dims of query head `head`, to `at`.
__device__ __forceinline__ void kv_write(const KvDecodeArgs& a, long long at, int head, Found found) {
  if (a.sinks) {
    const float sink = load_any(a.sinks, a.sinks_type, head) * 1.44269504f, peak = fmaxf(found.most, sink);
    found.raise(peak), found.total += ex2_approx(sink - peak);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float y = found.total > 0 ? __fdiv_rn(found.sum[i], found.total) : 0.0f;
    if (a.store == kKvStoreF32) static_cast<float*>(a.y)[at + i] = y;
    else
      static_cast<unsigned short*>(a.y)[at + i] = a.store == kKvStoreBf16 ? from_float<true>(y) : from_float<false>(y);
  }
}

// Brings together what the warps of this block found, and where it is the last of the splits, what those found; writes
// y.
template <class T>
__device__ __forceinline__ void kv_join(const KvDecodeArgs& a, KvState<T>& state, int sequence, int head, int tile,
                                        int split) {
  constexpr int size = T::kRecord, Q = T::kQueries;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5), g = lane >> 2,
            t = lane & 3;
  const int threads = static_cast<int>(blockDim.x), records_of = (threads >> 5) / T::kSharers,
            group = a.heads / a.kv_heads;
  const int columns = group - tile * Q < Q ? group - tile * Q : Q;
  __syncthreads();  // the rings are free
  float* const records = reinterpret_cast<float*>(dynamic_shared());
  float* const record = records + warp / T::kSharers * size;
  const int first_dim = kv_first_dim<T>();
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * n + 2 * t + c;
      float zeros[T::kValueGroups];
#pragma unroll
      for (int v = 0; v < T::kValueGroups; ++v) zeros[v] = __shfl_sync(0xffffffffu, state.rest[n][c], 4 * v + t);
      if (column >= columns) continue;
      if (g == 0 && first_dim == 0) record[column] = state.most[n][c], record[Q + column] = state.rest[n][2 + c];
#pragma unroll
      for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
        for (int i = c; i < 4; i += 2)
          record[2 * Q + column * T::kHeadDims + first_dim + kv_value_dim<T>(m, g + 8 * (i >> 1))] =
              state.out[n][m][i] + zeros[T::kInWords ? 0 : 16 * m / T::kPart];
    }
  __syncthreads();
  // Of a tile: records of its splits, then those of runs of `joined` splits; counters of the tile, then of its runs.
  const int tile_index = (sequence * a.kv_heads + head) * a.query_tiles + tile, runs = kv_runs(a.splits, a.joined);
  float* const all = a.partial + static_cast<long long>(tile_index) * (a.splits + runs) * size;
  unsigned* const counters = a.counters + tile_index * (1 + runs);
  const int first_head = head * group + tile * Q;
  // Of number i of [columns][D]: it has a place in y, as dims of the cache beyond the head's own do not.
  const auto write = [&](int i, int column, const Found& found) {
    const int dim = i % T::kHeadDims;
    if (dim < a.head_dims)
      kv_write(a, (static_cast<long long>(sequence) * a.heads + first_head + column) * a.head_dims + dim,
               first_head + column, found);
  };
  // A thread takes four dims of a column.
  const auto each_four = [&](const auto& what) {
#pragma unroll 1
    for (int i = 4 * static_cast<int>(threadIdx.x); i < columns * T::kHeadDims; i += 4 * threads)
      what(i, i / T::kHeadDims);
  };
  const auto leave = [&](float* to, int i, int column, const Found& found) {
    *reinterpret_cast<float4*>(to + 2 * Q + i) = make_float4(found.sum[0], found.sum[1], found.sum[2], found.sum[3]);
    if (i % T::kHeadDims == 0) to[column] = found.most, to[Q + column] = found.total;
  };
  each_four([&](int i, int column) {
    const Found found = join_warps<4, Q>(records, records_of, size, column, i);
    if (a.splits == 1) write(i, column, found);
    else leave(all + static_cast<long long>(split) * size, i, column, found);
  });
  if (a.splits == 1) return;
  // Whoever delivers last brings a run of splits together, in their order, and whoever does that last the runs.
  unsigned* const last = reinterpret_cast<unsigned*>(records + records_of * size);
  const float* from = all;
  int count = a.splits;
  if (runs > 1) {
    const int run = split / a.joined, first = run * a.joined;
    count = a.splits - first < a.joined ? a.splits - first : a.joined;
    if (!is_last_split(counters + 1 + run, last, count)) return;
    each_four([&](int i, int column) {
      leave(all + static_cast<long long>(a.splits + run) * size, i, column,
            join_splits<size, Q>(all + static_cast<long long>(first) * size, count, column, i));
    });
    from = all + static_cast<long long>(a.splits) * size, count = runs;
  }
  if (!is_last_split(counters, last, count)) return;
  each_four([&](int i, int column) { write(i, column, join_splits<size, Q>(from, count, column, i)); });
}

}  // namespace lpq::cuda
