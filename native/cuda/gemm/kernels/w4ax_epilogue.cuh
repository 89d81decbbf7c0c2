// Sums of w4ax.cuh to y, at once or, of items that blocks share, through the workspace.
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/w4ax_producer.cuh"
#include "cuda/gemm/kernels/w4ax_products.cuh"
#include "cuda/gemm/store.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Of a lane's four rows, 8 apart.
struct RowBias {
  float of[4];
  __device__ __forceinline__ RowBias(const W4axArgs& a, int row0, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = row0 + 8 * i + FragmentC<float>::row(lane);
      of[i] = a.bias && n < a.n ? __ldg(a.bias + n) : 0.0f;
    }
  }
};

// Eight tokens of a warp's 32 rows to y; v: [8 rows][token], as FragmentC has a lane's row and its two columns.
// `staging`: 512 bytes of the warp's own.
__device__ __forceinline__ void store_tokens(const W4axArgs& a, int row0, int token0, const float (&v)[4][2],
                                             const RowBias& bias, uint32_t staging, int lane) {
  using Sums = FragmentC<float>;
  float out[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) out[i][j] = __fadd_rn(v[i][j], bias.of[i]);
  if (a.store == kW4axStoreF32) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = row0 + 8 * i + Sums::row(lane), m = token0 + Sums::column(lane, j);
        if (n < a.n && m < a.m) static_cast<float*>(a.y)[static_cast<long long>(m) * a.n + n] = out[i][j];
      }
    return;
  }
  const bool bf16 = a.store == kW4axStoreBf16;
  store_transposed<2, 1>(
      {static_cast<uint16_t*>(a.y), a.m, a.n, a.vectors != 0}, row0, token0, INT_MIN, staging, lane,
      [&](int, int i) { return bf16 ? cvt_x2<true>(out[i][0], out[i][1]) : cvt_x2<false>(out[i][0], out[i][1]); });
}

// Where an item's rows and tokens begin.
template <int T>
struct W4axOrigin {
  int row, token;
  __device__ __forceinline__ W4axOrigin(const W4axArgs& a, int item, int rank)
      : row(item / a.token_tiles * kW4axRows), token((item % a.token_tiles * a.cluster + rank) * 8 * T) {}
};

template <int T>
__device__ __forceinline__ void store_item(const W4axArgs& a, int item, int rank, const W4axWarp& place,
                                           const typename W4axStep<T>::Sums (&sum)[2], uint32_t staging) {
  const W4axOrigin<T> origin(a, item, rank);
  const int row0 = origin.row + place.warp * 32;
  const RowBias bias(a, row0, place.lane);
#pragma unroll
  for (int t = 0; t < T; ++t) {
    float v[4][2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[row_eight(h, i >> 1)][i & 1] = sum[h][t][i];
    store_tokens(a, row0, origin.token + 8 * t, v, bias, staging, place.lane);
  }
}

// A shared item's parts in the workspace: of each block two places, in the first the item that its run begins with. A
// place has kW4axWarps T units of 32 rows by eight tokens, 1 KiB of sums each.
template <int T>
__device__ __forceinline__ float4* part_of(const W4axArgs& a, long long block, int place, int unit, int lane) {
  return reinterpret_cast<float4*>(a.partial) + ((block * 2 + place) * (kW4axWarps * T) + unit) * 64 + lane;
}
template <int T>
__device__ __forceinline__ void keep_part(const W4axArgs& a, bool first, const W4axWarp& place,
                                          const typename W4axStep<T>::Sums (&sum)[2]) {
  float4* const to = part_of<T>(a, blockIdx.x, first ? 0 : 1, 0, place.lane);
#pragma unroll
  for (int t = 0; t < T; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto& four = sum[h][t];
      __stcg(to + (place.warp * T + t) * 64 + h * 32, make_float4(four[0], four[1], four[2], four[3]));
    }
}

// A sharer's share of a shared item: the parts of all, added in the order of K.
template <int T>
__device__ __forceinline__ void add_up_parts(const W4axArgs& a, const EvenRuns& runs, const TileSharers& sharers,
                                             int item, const W4axUnit& unit, const W4axWarp& place, uint32_t staging) {
  constexpr int kUnits = kW4axWarps * T;
  const W4axOrigin<T> origin(a, item, unit.rank);
  const int share = unit.number - sharers.from, end = kUnits * (share + 1) / sharers.count();
  for (int u = kUnits * share / sharers.count() + place.warp; u < end; u += kW4axWarps) {
    float v[4][2] = {};
#pragma unroll 4
    for (int c = sharers.from; c <= sharers.to; ++c) {
      const float4* const part = part_of<T>(a, c * a.cluster + unit.rank, runs.part(sharers, c), u, place.lane);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 more = __ldcg(part + 32 * h);
        const float four[4] = {more.x, more.y, more.z, more.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) v[row_eight(h, i >> 1)][i & 1] += four[i];
      }
    }
    const int row0 = origin.row + u / T * 32;
    store_tokens(a, row0, origin.token + 8 * (u % T), v, RowBias(a, row0, place.lane), staging, place.lane);
  }
}

#endif

}  // namespace lpq::cuda
