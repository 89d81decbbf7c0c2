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
  const int threads = static_cast<int>(blockDim.x), warps = threads >> 5, group = a.heads / a.kv_heads;
  const int columns = group - tile * Q < Q ? group - tile * Q : Q;
  __syncthreads();  // the rings are free
  float* const records = reinterpret_cast<float*>(dynamic_shared());
  float* const record = records + (warp * T::kRecords + kv_set<T>()) * size;
#pragma unroll
  for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * n + 2 * (T::kSets == 2 ? t & 1 : t) + c;
      float zeros[T::kValueGroups];
#pragma unroll
      for (int v = 0; v < T::kValueGroups; ++v) zeros[v] = __shfl_sync(0xffffffffu, state.rest[n][c], 4 * v + t);
      if (column >= columns) continue;
      if (g == 0) record[column] = state.most[n][c], record[Q + column] = state.rest[n][2 + c];
#pragma unroll
      for (int m = 0; m < T::kDims / 16; ++m)
#pragma unroll
        for (int i = c; i < 4; i += 2)
          record[2 * Q + column * T::kDims + kv_value_dim<T>(m, g + 8 * (i >> 1))] =
              state.out[n][m][i] + zeros[T::kInWords ? 0 : 16 * m / T::kPart];
    }
  __syncthreads();
  const int tile_index = (sequence * a.kv_heads + head) * a.query_tiles + tile;
  float* const all = a.partial + static_cast<long long>(tile_index) * a.splits * size;
  const int first_head = head * group + tile * Q;
  const long long y = (static_cast<long long>(sequence) * a.heads + first_head) * T::kDims;
  // A thread takes four dims of a column.
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns * T::kDims; i += 4 * threads) {
    const int column = i / T::kDims;
    const Found found = join_warps<4, Q>(records, warps * T::kRecords, size, column, i);
    if (a.splits == 1) {
      kv_write(a, y + i, first_head + column, found);
      continue;
    }
    float* const to = all + static_cast<long long>(split) * size;
    *reinterpret_cast<float4*>(to + 2 * Q + i) = make_float4(found.sum[0], found.sum[1], found.sum[2], found.sum[3]);
    if (i % T::kDims == 0) to[column] = found.most, to[Q + column] = found.total;
  }
  if (a.splits == 1) return;
  // Whoever delivers last brings the splits together, in their order.
  unsigned* const last = reinterpret_cast<unsigned*>(records + warps * T::kRecords * size);
  if (!is_last_split(a.counters + tile_index, last, a.splits)) return;
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns * T::kDims; i += 4 * threads)
    kv_write(a, y + i, first_head + i / T::kDims, join_splits<size, Q>(all, a.splits, i / T::kDims, i));
}

}  // namespace lpq::cuda
