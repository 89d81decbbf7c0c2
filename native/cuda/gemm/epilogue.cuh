// What kernels do with sums: scales and zero points of a group, outputs, strips that several blocks share.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/store.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// Whether a group begins, or ends, with chunk c of 32 k of a packed block; which group that is. Ends by branches: where
// the compiler makes one predicate of all, 64 tokens of f16 times floats of 7 bits spill.
__device__ __forceinline__ bool group_begins(const GemmPackedArgs& g, int c) {
  return c == 0 || g.groups_per_block == 4 || (c == 2 && g.groups_per_block == 2);
}
__device__ __forceinline__ bool group_ends(const GemmPackedArgs& g, int c) {
  if (c == 3) return true;
  if (g.groups_per_block == 4) return true;
  return c == 1 && g.groups_per_block == 2;
}
__device__ __forceinline__ int group_of(const GemmPackedArgs& g, int c) {
  return g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
}

// A lane's rows n' = 8 r + lane / 4 have four numbers of 16 bits side by side: two words.
__device__ __forceinline__ void row_numbers(uint2 words, bool bf16, float (&v)[4]) {
  const uint32_t pairs[2] = {words.x, words.y};
  if (bf16) {
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), true);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), false);
  }
}
// Their zero points, in shared memory four bytes at `bytes_at` or four f16 at `halves_at`.
__device__ __forceinline__ void row_zeros(const GemmPackedArgs& g, uint32_t bytes_at, uint32_t halves_at,
                                          float (&zero)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) zero[r] = g.zero;
  if (g.zero_kind == 1) {
    const uint32_t bytes = ld_shared(bytes_at);
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] += static_cast<float>((bytes >> 8 * r) & 255);
  } else if (g.zero_kind == 2) {
    const uint2 words = ld_shared_v2(halves_at);
    const uint32_t halves[2] = {words.x, words.y};
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] += to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
  }
}

// Of this lane's rows in one group: what sums of pairs are multiplied by, and minus what is subtracted for each unit of
// S. Scales and zeros lie in shared memory as packed.
template <class Cast>
__device__ __forceinline__ void group_factors(const GemmPackedArgs& g, const Cast& cast, uint32_t scales,
                                              uint32_t zeros, int lane, float (&scale)[4], float (&zero)[4]) {
  float s[4];
  row_numbers(ld_shared_v2(scales + (lane >> 2) * 8), g.scale_bf16, s);
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = s[r] * Cast::ungain(r);
    row_zeros(g, zeros + (lane >> 2) * 4, zeros + (lane >> 2) * 8, zero);
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] = -fmaf(zero[r], Cast::gain(r), Cast::bias());
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = s[r] * cast.unpower, zero[r] = 0;
  }
}

// sum += scale (part - zero' S); `ones`: S of 8 T tokens in shared memory.
template <int T, bool Sums>
__device__ __forceinline__ void add_group(float (&sum)[2][T][4], const float (&part)[2][T][4], const float (&scale)[4],
                                          const float (&zero)[4], const float* ones, int lane) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    float2 s = make_float2(0, 0);
    if (Sums) s = *reinterpret_cast<const float2*>(ones + t * 8 + 2 * (lane & 3));
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 2 * nt + (i >> 1);
        const float p = Sums ? fmaf(zero[r], i & 1 ? s.y : s.x, part[nt][t][i]) : part[nt][t][i];
        sum[nt][t][i] = fmaf(scale[r], p, sum[nt][t][i]);
      }
  }
}

#if LPQ_HAS_TMA
// Sums of 16 P rows from n0 on, U parts of 16 / P tokens, with the bias to y through 512 U bytes at `staging`. sums(u,
// p, i): of the u-th 8 tokens register i of the p-th 16 rows. Tokens before `least` are left out.
template <bool BF, int P, int U, class Sums>
__device__ __forceinline__ void store_tokens(const GemmPackedArgs& g, bool vectors, int n0, int token0, int least,
                                             uint32_t staging, int lane, const Sums& sums) {
  float bias[2 * P];
#pragma unroll
  for (int i = 0; i < 2 * P; ++i) {
    const int n = n0 + 8 * i + (lane >> 2);
    bias[i] = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
  }
  store_transposed<P, U>({g.y, g.m, g.n, vectors}, n0, token0, least, staging, lane, [&](int u, int i) {
    const int eight = P == 2 ? u : 2 * u + (i >> 1), chunk = i % (2 * P);
    return cvt_x2<BF>(sums(eight, chunk >> 1, 2 * (chunk & 1)) + bias[chunk],
                      sums(eight, chunk >> 1, 2 * (chunk & 1) + 1) + bias[chunk]);
  });
}
#endif

// Vector v (of 2 T) of a warp's tile: rows 16 (v / T) + lane / 4 and 8 further, tokens 8 (v % T) + 2 (lane % 4) and the
// next.
template <int T, bool XB>
__device__ __forceinline__ void store_vector(const GemmPackedArgs& g, int strip, int tile, int v, int lane,
                                             float4 value) {
  const int n0 = (strip * g.warps_n + tile) * 32 + v / T * 16 + (lane >> 2), m0 = v % T * 8 + (lane & 3) * 2;
  const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = n0 + (i >> 1) * 8, m = m0 + (i & 1);
    if (n < g.n && m < g.m)
      g.y[static_cast<long long>(m) * g.n + n] = from_float<XB>(values[i] + (g.bias ? to_float(g.bias[n], XB) : 0.0f));
  }
}

// A tile ends, or the block's share of it: the warps along K add up in pairs, then those at their head store it where
// the block has all of it (`alone`), else keep the block's part in the workspace. Then the sums are 0. `part`: 0 for
// the tile that the block's run begins with, else 1; `counter`: the tile's first; store(v, value): vector v of this
// warp's; sync(): of all warps that multiply.
template <int T, class Sync, class Store>
__device__ __forceinline__ void end_tile(const GemmPackedArgs& g, float (&sum)[2][T][4], float4* exchange, int part,
                                         bool alone, unsigned* counter, int wn, int wk, int lane, const Sync& sync,
                                         const Store& store) {
  add_up_warps(sum, exchange, g.warps_n, g.warps_k, wn, wk, lane, sync);
  if (wk == 0) {
    float4* to = reinterpret_cast<float4*>(g.partial) +
                 (static_cast<long long>(blockIdx.x) * 2 + part) * (g.warps_n * 2 * T * 32) + wn * 2 * T * 32 + lane;
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) {
      if (alone) store(v, sum_vector(sum, v));
      else __stcg(to + v * 32, sum_vector(sum, v));
    }
  }
  clear_sums(sum);
  if (!alone) publish_part(counter, threadIdx.x == 0, sync);
}

// The tiles at both ends of the run, if others share them: each sharer adds up and stores a slice of the tile.
// counter_of(tile); store_of(tile) -> store(warp along N, v, lane, value).
template <int T, class Sync, class Counter, class StoreOf>
__device__ __forceinline__ void finish_tiles(const GemmPackedArgs& g, const EvenRuns& runs, int first, int last,
                                             int thread, int threads, const Sync& sync, const Counter& counter_of,
                                             const StoreOf& store_of) {
  const int tile_vectors = g.warps_n * 2 * T * 32;
  fixup_together(runs, first, last, thread == 0, counter_of, sync, [&](int tile, const TileSharers& sharers) {
    const auto store = store_of(tile);
    const int rank = static_cast<int>(blockIdx.x) - sharers.from;
    const int slice_begin = static_cast<int>(static_cast<long long>(tile_vectors) * rank / sharers.count());
    const int slice_end = static_cast<int>(static_cast<long long>(tile_vectors) * (rank + 1) / sharers.count());
    for (int f = slice_begin + thread; f < slice_end; f += threads) {
      float4 value = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int c = sharers.from; c <= sharers.to; ++c)
        add(value, __ldcg(reinterpret_cast<const float4*>(g.partial) +
                          (static_cast<long long>(c) * 2 + runs.part(sharers, c)) * tile_vectors + f));
      store(f / (2 * T * 32), f / 32 % (2 * T), f % 32, value);
    }
  });
}

// The same of strips of one weight, two counters each. `begins`: the block's run begins with this strip.
template <int T, bool XB, class Sync>
__device__ __forceinline__ void end_strip(const GemmPackedArgs& g, float (&sum)[2][T][4], float4* exchange, int strip,
                                          bool begins, bool alone, int wn, int wk, int lane, const Sync& sync) {
  end_tile(g, sum, exchange, begins ? 0 : 1, alone, g.counters + 2 * strip, wn, wk, lane, sync,
           [&](int v, float4 value) { store_vector<T, XB>(g, strip, wn, v, lane, value); });
}
template <int T, bool XB, class Sync>
__device__ __forceinline__ void finish_shared(const GemmPackedArgs& g, const EvenRuns& runs, int first, int last,
                                              int thread, int threads, const Sync& sync) {
  finish_tiles<T>(
      g, runs, first, last, thread, threads, sync, [&](int strip) { return g.counters + 2 * strip; },
      [&](int strip) {
        return [&g, strip](int tile, int v, int lane, float4 value) {
          store_vector<T, XB>(g, strip, tile, v, lane, value);
        };
      });
}

}  // namespace lpq::cuda
