// What becomes of a warp's sums of scaled.cuh and act8.cuh: outputs, and the fixup of items that blocks share.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/scaled/walk.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// What becomes of a warp's sums of an item. Of a shared one its blocks add up eights of tokens: all those of the block
// that begins it (owners), or each a share. Args: m, n and k_blocks, and the workspace (partial, counters). Outputs:
// store<Units>(row, token, least, staging, sums) stores so many units of 16 / P tokens (from `least` on) of the warp's
// 16 P rows; sums(t, p, i) is register i of the p-th 16 rows of the t-th eight of tokens.
template <int T, int P, int G, class Number, class Args, class Outputs>
struct ScaledEpilogue {
  static constexpr int kWarps = 8 * G;
  static constexpr int kUnit = 2 / P;  // eights of a unit of ScaledShares
  const Args& g;
  const ScaledArgs& a;
  const uint32_t shared;  // where the block's shared memory begins
  const int lane, warp;
  const int row_at;  // the warp's first row in a strip
  Number (&sum)[P][T][4];
  const Outputs outputs;

  // `began`, `end`: the block's part of the item along K.
  __device__ __forceinline__ void finish(int item, int began, int end) {
    finish(item, scaled_place(a, 4 * P * G, 8 * T, item), began, end);
  }
  __device__ __forceinline__ void finish(int item, ScaledPlace at, int began, int end) {
    const int token0 = at.token, first = min(token0, a.last_token), row0 = at.block * kBlockN + row_at;
    const bool mine = row0 < g.n;
    // The eights from `low` to `high` are this block's to store, whole where nobody shares the item.
    int low = 0, high = T;
    if (end - began != g.k_blocks) {
      if (a.cluster) fixup_cluster(low, high);
      else fixup(item, began, first, token0, mine, low, high);
    }
    if (!mine) return;
    constexpr int kAtOnce = T % (2 * kUnit) == 0 ? 2 : 1;
    if (low == 0 && high == T) store<kAtOnce>(row0, 0, T, first, token0);
    else store<1>(row0, low, high, first, token0);
  }

 private:
  // Whether any of so many eights of tokens are to be stored.
  __device__ __forceinline__ bool wanted(int t, int eights, int first, int token0) const {
    return first + 8 * t < g.m && first + 8 * (t + eights) > token0;
  }
  // The eights from `low` to `high`, so many units at once.
  template <int Units>
  __device__ __forceinline__ void store(int row0, int low, int high, int first, int token0) const {
#pragma unroll
    for (int t = 0; t < T; t += Units * kUnit)
      if (t >= low && t < high && wanted(t, Units * kUnit, first, token0))
        outputs.template store<Units>(row0, first + 8 * t, token0, shared + a.staging_at + warp * kScaledStaging,
                                      [&](int u, int p, int i) { return sum[p][t + u][i]; });
  }
  // A block's sums: [warp][eight of tokens][half][lane] float4.
  __device__ __forceinline__ float4* sums_of(int block) const {
    return reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(block) * kWarps + warp) * (T * P * 32) + lane;
  }
  __device__ __forceinline__ void fixup(int item, int began, int first, int token0, bool mine, int& low, int& high) {
    const TileSharers sharers = EvenRuns(a.shared_items, g.k_blocks, a.shared_blocks).sharers(item);
    const int own = static_cast<int>(blockIdx.x), turn = own - sharers.from;
    if (a.owners) high = began == 0 ? T : 0;
    else low = T / kUnit * turn / sharers.count() * kUnit, high = T / kUnit * (turn + 1) / sharers.count() * kUnit;
    const auto sync = [] { bar_sync(1, 32 * kWarps); };
    unsigned* const counter = g.counters + 2 * item;
    // Where few eights are shared by many, one block may store them all: it is waited for all the same.
    if (!a.owners || high - low < T) {
      if (mine) keep_part(own, low, high, first, token0);
      publish_part(counter, threadIdx.x == 0, sync);
    }
    // All blocks of the grid run at once, and those that are waited for do not wait before they have written, so
    // nobody waits for ever.
    const unsigned awaited = static_cast<unsigned>(a.owners ? sharers.to - own : sharers.count());
    if (high > low) {
      if (threadIdx.x == 0) wait_for_count(counter, awaited);
      sync();
    }
    // For the next launch; of blocks that go on together the last.
    if (threadIdx.x == 0 && (a.owners ? high > low : atomicAdd(counter + 1, 1u) + 1 == awaited))
      counter[0] = counter[1] = 0;
    for (int c = sharers.from; mine && high > low && c <= sharers.to; ++c)
      if (c != own) add_part(c, low, high, first, token0);
  }
  // Each block sends what the others add up, and adds theirs to its own in the order of K.
  __device__ __forceinline__ void fixup_cluster(int& low, int& high) {
    const ScaledShares shares(T, P, a.cluster);
    const int turn = static_cast<int>(blockIdx.x) % a.cluster;
    const uint32_t received = shared + a.received_at, sums_full = shared + kScaledSumsFull;
    cluster_wait();  // all have their barriers
#pragma unroll
    for (int unit = 0; unit < T / kUnit; ++unit) {
      const int owner = shares.owner(unit, warp);
      if (owner == turn) continue;
      const uint32_t to = mapa_shared(received + shares.place(turn, owner, warp, unit, kWarps) + lane * 16, owner),
                     barrier = mapa_shared(sums_full, owner);
#pragma unroll
      for (int v = 0; v < 2; ++v) st_async_v4(to + v * 512, barrier, unit_vector(unit, v));
    }
    const int part = shares.part(turn);
    low = high = 0;
    if (!shares.owns(turn, warp)) return;
    low = shares.first(part) * kUnit, high = shares.first(part + 1) * kUnit;
    mbarrier_wait_parity(sums_full, 0);
    for (int from = 0; from < a.cluster; ++from) {
      if (from == turn) continue;
#pragma unroll
      for (int unit = 0; unit < T / kUnit; ++unit) {
        if (unit * kUnit < low || unit * kUnit >= high) continue;
        const uint32_t at = received + shares.place(from, turn, warp, unit, kWarps) + lane * 16;
#pragma unroll
        for (int v = 0; v < 2; ++v) add_vector(sum, vector_of(unit, v), ld_shared_f4(at + v * 512));
      }
    }
  }
  // The two vectors of a unit: 8 tokens each (P = 1), or 16 rows each.
  static __device__ __forceinline__ constexpr int vector_of(int unit, int v) {
    return P == 1 ? 2 * unit + v : v * T + unit;
  }
  __device__ __forceinline__ float4 unit_vector(int unit, int v) const { return sum_vector(sum, vector_of(unit, v)); }
  // The eights that others store.
  __device__ __forceinline__ void keep_part(int own, int low, int high, int first, int token0) const {
    float4* const kept = sums_of(own);
#pragma unroll
    for (int t = 0; t < T; ++t)
      if ((t < low || t >= high) && wanted(t, 1, first, token0)) {
#pragma unroll
        for (int p = 0; p < P; ++p) __stcg(kept + (t * P + p) * 32, sum_vector(sum, p * T + t));
      }
  }
  __device__ __forceinline__ void add_part(int block, int low, int high, int first, int token0) {
    constexpr int kBatch = 8 / P;
    const float4* const part = sums_of(block);
#pragma unroll
    for (int t0 = 0; t0 < T; t0 += kBatch) {
      if (t0 + kBatch <= low || t0 >= high || !wanted(t0, kBatch, first, token0)) continue;
      float4 v[kBatch][P];
#pragma unroll
      for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
        for (int p = 0; p < P; ++p)
          v[t - t0][p] = t >= low && t < high ? __ldcg(part + (t * P + p) * 32) : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
        for (int p = 0; p < P; ++p) add_vector(sum, p * T + t, v[t - t0][p]);
    }
  }
};

#endif

}  // namespace lpq::cuda
