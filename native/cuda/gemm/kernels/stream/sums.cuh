// What becomes of a warp's sums of stream.cuh: to the warps before it, and to the other slices of K.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/features.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A warp's sums of a strip, and where they go.
template <int T, int W, bool XB, class Cast, class Work>
struct StreamSums {
  const GemmPackedArgs& g;
  const StreamArgs& a;
  const Work& work;
  const Cast& cast;
  float4 *const heads, *const parts;  // in shared memory: what warps hand to those before them; slices of strips
  const int slice_bits, lane, warp;
  float sum[2][T][4];

  // What the casts multiplied by is taken back: powers of two, exact.
  __device__ __forceinline__ float4 finished(int v) const {
    const float4 f = sum_vector(sum, v);
    const int r = v / T * 2;
    float low, high;
    if constexpr (Cast::kSums) low = Cast::ungain(r), high = Cast::ungain(r + 1);
    else low = high = cast.unpower;
    return make_float4(f.x * low, f.y * low, f.z * high, f.w * high);
  }
  // The strip began in another warp's run, which adds this up.
  __device__ __forceinline__ void hand_over() const {
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) heads[(warp * 2 * T + v) * 32] = sum_vector(sum, v);
  }
  // The strip that this warp began and did not end: those after it hold the rest, up to packed block `end` of the
  // block's.
  __device__ __forceinline__ void take_over(int end) {
    for (int w = warp + 1; w < W; ++w) {
      const int from = work.run_first(w);
      if (from >= end) break;
      if (work.run_first(w + 1) == from) continue;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) add_vector(sum, v, heads[(w * 2 * T + v) * 32]);
    }
  }
  // The slice's part of strip `strip` of the block is in `sum`. Slices of a cluster are powers of two.
  __device__ __forceinline__ void deliver(int strip) const {
    if (!a.workspace) {
      const uint32_t here = shared_address(parts + (((strip >> slice_bits) << slice_bits) + work.slice) * (2 * T * 32));
      const uint32_t there = mapa_shared(here, strip & (a.slices - 1));
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) st_shared_cluster_v4(there + v * 512, finished(v));
    } else {
      deliver_by_workspace(work.strip_first + strip);
    }
  }
  // Slices of a cluster: vectors of the strips slice, slice + slices, ... of the block.
  __device__ __forceinline__ void add_up_slices() const {
    const int mine = (work.strips - work.slice + a.slices - 1) >> slice_bits;
    for (int i = warp; i < mine * 2 * T; i += W) {
      const int at = i / (2 * T), v = i % (2 * T);
      const float4* from = parts + (at << slice_bits) * (2 * T * 32) + v * 32;
      float4 all = from[0];
      for (int s = 1; s < a.slices; ++s) add(all, from[s * 2 * T * 32]);
      store_vector<T, XB>(g, work.strip_first + (at << slice_bits) + work.slice, 0, v, lane, all);
    }
  }

 private:
  __device__ __forceinline__ void deliver_by_workspace(int row) const {
    float4* const base =
        reinterpret_cast<float4*>(g.partial) + static_cast<long long>(row) * a.slices * (2 * T * 32) + lane;
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) __stcg(base + (work.slice * 2 * T + v) * 32, finished(v));
    // One lane releases and acquires for the warp: what the others wrote happened before its atomic, what they read,
    // after.
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) before = atom_inc_acq_rel(g.counters + row);
    before = __shfl_sync(0xffffffffu, before, 0);
    __syncwarp();
    if (before + 1 == static_cast<unsigned>(a.slices)) {
      if (lane == 0) g.counters[row] = 0;  // for the next launch
#pragma unroll 1
      for (int v = 0; v < 2 * T; ++v) {
        float4 all = __ldcg(base + v * 32);
#pragma unroll 4
        for (int s = 1; s < a.slices; ++s) add(all, __ldcg(base + (s * 2 * T + v) * 32));
        store_vector<T, XB>(g, row, 0, v, lane, all);
      }
    }
  }
};

#endif

}  // namespace lpq::cuda
