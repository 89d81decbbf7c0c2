// What a warp of w4ax.cuh does with a stage: products of 128 of k by wgmma, added to its sums.
//
// A warp's 32 rows are two halves of 16, the rows of a WarpgroupD each, one after the other (row_eight).
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/w4ax_producer.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A warp that multiplies: its warpgroup is one of two.
struct W4axWarp {
  int lane, warp, group;
  __device__ __forceinline__ W4axWarp(int lane_, int warp_) : lane(lane_), warp(warp_), group(warp_ >> 2) {}
};

// How 128 of k are gone through.
template <int T>
struct W4axStep {
  static constexpr W4axStage kStage = w4ax_stage(T);
  static constexpr int kHalves = T <= 8 ? 2 : 1;  // that multiply at once
  // The warpgroups take turns at the tensor core: while one's products run, the other adds up its own. Without turns
  // they run in step, and the tensor core rests while both add.
  static constexpr bool kTurns = kHalves == 1;
  // Of 128 tokens nibbles take half after half: what is done is added up while the other half multiplies.
  static constexpr int kSplit = kTurns ? 2 : 1, kTiles = T / kSplit, kProducts = kHalves * kSplit;
  using Sums = WarpgroupD<float, T>;
  using Part = WarpgroupD<int, kTiles>;
};

// Rows of a warp's 32 that register pair `high` of half `h` has, in eights.
__device__ __forceinline__ constexpr int row_eight(int h, int high) { return 2 * h + high; }

// Codes of 4 bits, two's complement, in the low and in the high halves of bytes, as s8: 16 times the code.
__device__ __forceinline__ void widen_nibbles(uint32_t nibbles, uint32_t& low, uint32_t& high) {
  low = nibbles << 4 & 0xf0f0f0f0u, high = nibbles & 0xf0f0f0f0u;
}
// A product of widened codes, times this, is that of codes; those of activations of 4 bits are widened, too.
__device__ __forceinline__ float unpower_of(const W4axArgs& a, int kb) {
  return __ldg(a.blocks + kb) < 0 ? 0.00390625f : 0.0625f;
}

// Operand A of the four products of 32 k of half `h`.
__device__ __forceinline__ void load_nibbles(WarpgroupA<8> (&w)[4], uint32_t at, int h, const W4axWarp& place) {
  const uint32_t words = at + (place.warp * 2 + h) * 1024 + place.lane * 16;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const uint4 q = ld_shared_v4(words + v * 512);
    widen_nibbles(q.x, w[2 * v][0], w[2 * v][2]);
    widen_nibbles(q.y, w[2 * v][1], w[2 * v][3]);
    widen_nibbles(q.z, w[2 * v + 1][0], w[2 * v + 1][2]);
    widen_nibbles(q.w, w[2 * v + 1][1], w[2 * v + 1][3]);
  }
}

// sum += part, times the scales of row and token: of tiles of tokens from t0 on.
template <int T>
__device__ __forceinline__ void add_part(typename W4axStep<T>::Sums& sum, const typename W4axStep<T>::Part& part,
                                         int t0, const float (&row_scale)[2], uint32_t x_scales, int lane) {
#pragma unroll
  for (int t = 0; t < W4axStep<T>::kTiles; ++t) {
    uint32_t low, high;
    ld_shared_v2(low, high, x_scales + (8 * (t0 + t) + FragmentC<float>::column(lane)) * 4);
    const float x_scale[2] = {__uint_as_float(low), __uint_as_float(high)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float exact = static_cast<float>(part[t][i]);  // integers below 2^21: exact
      sum[t0 + t][i] = fmaf(exact, x_scale[i & 1] * row_scale[i >> 1], sum[t0 + t][i]);
    }
  }
}

// Sums of 128 of k, of the halves from `pass` on.
template <int T>
__device__ __forceinline__ void multiply_parts(typename W4axStep<T>::Sums (&sum)[2], uint32_t at, int pass,
                                               float unpower, const W4axWarp& place) {
  using Step = W4axStep<T>;
  typename Step::Part part[Step::kProducts];
  WarpgroupA<8> w[Step::kHalves][4];
#pragma unroll
  for (int p = 0; p < Step::kHalves; ++p) load_nibbles(w[p], at, pass + p, place);
#pragma unroll
  for (int p = 0; p < Step::kHalves; ++p)
#pragma unroll
    for (int v = 0; v < 4; ++v)
#pragma unroll
      for (int i = 0; i < 4; ++i) keep_here(w[p][v][i]);
  if constexpr (Step::kTurns) bar_sync(2 + place.group, 32 * kW4axWarps);
  wgmma_fence();
#pragma unroll
  for (int p = 0; p < Step::kProducts; ++p) {
    const uint64_t x = wgmma_descriptor(at + Step::kStage.x, 1024) + p % Step::kSplit * (Step::kTiles * 64);
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) wgmma_k32<Step::kTiles>(part[p], w[p / Step::kSplit][ks], x + ks * 2, ks != 0);
    wgmma_commit();
  }
  if constexpr (Step::kTurns) bar_arrive(3 - place.group, 32 * kW4axWarps);
#pragma unroll
  for (int p = 0; p < Step::kProducts; ++p) {
    const int h = pass + p / Step::kSplit;
    float row_scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place.warp * 32 + 8 * row_eight(h, i) + FragmentC<float>::row(place.lane);
      row_scale[i] = __uint_as_float(ld_shared(at + Step::kStage.w_scales + row * 4)) * unpower;
    }
    if (p + 1 < Step::kProducts) wgmma_wait<1>();
    else wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < Step::kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) keep_here(part[p][t][i]);
    add_part<T>(sum[h], part[p], p % Step::kSplit * Step::kTiles, row_scale, at + Step::kStage.x_scales, place.lane);
  }
}

#endif

}  // namespace lpq::cuda
