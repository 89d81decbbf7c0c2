// What becomes of the sums of cached.cuh: warps, then splits, brought together.
#pragma once
#include "cuda/attention/cached/products.cuh"
#include "cuda/attention/found.cuh"

namespace lpq::cuda {

// Four dims of a column into y.
template <bool BF>
__device__ __forceinline__ void cached_write(const CachedArgs& a, const CachedColumn& column, int d,
                                             const Found& found) {
  if (d >= a.value_dim) return;
  const bool any = found.total > 0;
  const float parts = any ? found.total : 1;
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = __fdiv_rn(any ? found.sum[i] : 0, parts);
  uint2* const to = reinterpret_cast<uint2*>(a.y + static_cast<long long>(column.row) * a.value_dim + d);
  *to = make_uint2(cvt_x2<BF>(sum[0], sum[1]), cvt_x2<BF>(sum[2], sum[3]));
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
    const Found found = join_warps<T::kWarps, kCachedQueries>(records, T::kWarps, kOwn, column, column * kColumn + d);
    if (a.splits == 1) {
      cached_write<BF>(a, table[column], d, found);
      continue;
    }
    float* const to = all + static_cast<long long>(own.split) * kCachedRecord<D>;
    *reinterpret_cast<float4*>(to + 2 * kCachedQueries + column * D + d) =
        make_float4(found.sum[0], found.sum[1], found.sum[2], found.sum[3]);
    if (d == 0) to[column] = found.most, to[kCachedQueries + column] = found.total;
  }
}

// The last block adds up all splits in their order.
template <class T, bool BF>
__device__ __forceinline__ void cached_fixup(const CachedArgs& a, int columns, const CachedColumn* table,
                                             const float* all) {
  constexpr int D = T::kDims;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < columns * (D / 4); i += 32 * T::kWarps) {
    const int column = i / (D / 4), d = i % (D / 4) * 4;
    cached_write<BF>(a, table[column], d,
                     join_splits<kCachedRecord<D>, kCachedQueries>(all, a.splits, column, column * D + d));
  }
}

}  // namespace lpq::cuda
