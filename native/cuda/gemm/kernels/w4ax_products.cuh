// What a warp of w4ax.cuh does with a stage: products of 128 of k by wgmma, added to its sums.
//
// A warp's 32 rows are two halves of 16, the rows of a WarpgroupD each: of bytes the eights of rows alternate between
// halves, of nibbles halves follow one another (row_eight).
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
template <class Kind, int T>
struct W4axStep {
  static constexpr W4axStage kStage = w4ax_stage(T, Kind::kNibbles, Kind::kMixed);
  static constexpr int kHalves = T <= 8 ? 2 : 1;  // that multiply at once
  // The warpgroups take turns at the tensor core: while one's products run, the other adds up its own. Without turns
  // they run in step, and the tensor core rests while both add. Of e4m3 there is too little to add: turns cost 2 %.
  static constexpr bool kTurns = Kind::kTurns && kHalves == 1;
  // Of 128 tokens nibbles take half after half: what is done is added up while the other half multiplies.
  static constexpr int kSplit = kTurns ? 2 : 1, kTiles = T / kSplit, kProducts = kHalves * kSplit;
  using Sums = WarpgroupD<float, T>;
  using Part = WarpgroupD<typename Kind::Part, kTiles>;
};

// Rows of a warp's 32 that register pair `high` of half `h` has, in eights.
template <class Kind>
__device__ __forceinline__ constexpr int row_eight(int h, int high) {
  return Kind::kNibbles ? 2 * h + high : 2 * high + h;
}

// Codes of 4 bits, two's complement, in the low and in the high halves of bytes: as s8, 16 times the code, or as e4m3,
// 2^-9 of it: numbers from 0 to 8 are so many 2^-9 below the first binade and in it, and bit 3 is the sign.
template <bool Float>
__device__ __forceinline__ void widen_nibbles(uint32_t nibbles, uint32_t& low, uint32_t& high) {
  if constexpr (Float) {
    constexpr uint32_t kEights = 0x08080808u, kCodes = 0x0f0f0f0fu, kSigns = 0x80808080u;
    low = __vabsdiffu4((nibbles & kCodes) ^ kEights, kEights) | (nibbles << 4 & kSigns);
    high = __vabsdiffu4((nibbles >> 4 & kCodes) ^ kEights, kEights) | (nibbles & kSigns);
  } else {
    low = nibbles << 4 & 0xf0f0f0f0u, high = nibbles & 0xf0f0f0f0u;
  }
}
// What widen_nibbles makes of a code, times this, is the code; of a product with activations of 4 bits, 16 times
// theirs.
template <class Kind>
__device__ __forceinline__ float unpower_of(const W4axArgs& a, int kb) {
  if constexpr (Kind::kMixed) return __ldg(a.blocks + kb) < 0 ? 0.00390625f : 0.0625f;
  return Kind::kFloat ? 512.0f : 0.0625f;
}

// Operand A of the four products of 32 k of half `h`.
template <class Kind>
__device__ __forceinline__ void load_nibbles(WarpgroupA<8> (&w)[4], uint32_t at, int h, const W4axWarp& place) {
  const uint32_t words = at + (place.warp * 2 + h) * 1024 + place.lane * 16;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const uint4 q = ld_shared_v4(words + v * 512);
    widen_nibbles<Kind::kFloat>(q.x, w[2 * v][0], w[2 * v][2]);
    widen_nibbles<Kind::kFloat>(q.y, w[2 * v][1], w[2 * v][3]);
    widen_nibbles<Kind::kFloat>(q.z, w[2 * v + 1][0], w[2 * v + 1][2]);
    widen_nibbles<Kind::kFloat>(q.w, w[2 * v + 1][1], w[2 * v + 1][3]);
  }
}

// sum += part, times scales where codes have them: of tiles of tokens from t0 on.
template <class Kind, int T>
__device__ __forceinline__ void add_part(typename W4axStep<Kind, T>::Sums& sum,
                                         const typename W4axStep<Kind, T>::Part& part, int t0,
                                         const float (&row_scale)[2], uint32_t x_scales, int lane) {
#pragma unroll
  for (int t = 0; t < W4axStep<Kind, T>::kTiles; ++t) {
    float x_scale[2] = {1.0f, 1.0f};
    if constexpr (Kind::kMixed) {
      uint32_t low, high;
      ld_shared_v2(low, high, x_scales + (8 * (t0 + t) + FragmentC<float>::column(lane)) * 4);
      x_scale[0] = __uint_as_float(low), x_scale[1] = __uint_as_float(high);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Kind::kNibbles) {
        const float exact = static_cast<float>(part[t][i]);  // integers below 2^21: exact
        const float scale = Kind::kMixed ? x_scale[i & 1] * row_scale[i >> 1] : row_scale[i >> 1];
        sum[t0 + t][i] = fmaf(exact, scale, sum[t0 + t][i]);
      } else {
        sum[t0 + t][i] += part[t][i];
      }
    }
  }
}

// Sums of 128 of k, of the halves from `pass` on.
template <class Kind, int T>
__device__ __forceinline__ void multiply_parts(typename W4axStep<Kind, T>::Sums (&sum)[2], uint32_t at, int pass,
                                               float unpower, const W4axWarp& place) {
  using Step = W4axStep<Kind, T>;
  typename Step::Part part[Step::kProducts];
  WarpgroupA<8> w[Step::kHalves][4];
  if constexpr (Kind::kNibbles) {
#pragma unroll
    for (int p = 0; p < Step::kHalves; ++p) load_nibbles<Kind>(w[p], at, pass + p, place);
#pragma unroll
    for (int p = 0; p < Step::kHalves; ++p)
#pragma unroll
      for (int v = 0; v < 4; ++v)
#pragma unroll
        for (int i = 0; i < 4; ++i) keep_here(w[p][v][i]);
  }
  if constexpr (Step::kTurns) bar_sync(2 + place.group, 32 * kW4axWarps);
  wgmma_fence();
#pragma unroll
  for (int p = 0; p < Step::kProducts; ++p) {
    const uint64_t x = wgmma_descriptor(at + Step::kStage.x, 1024) + p % Step::kSplit * (Step::kTiles * 64),
                   rows = wgmma_descriptor(at + place.group * 16384, 2048) + (pass + p) * 64;
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) {
      if constexpr (Kind::kNibbles) wgmma_k32<Step::kTiles>(part[p], w[p / Step::kSplit][ks], x + ks * 2, ks != 0);
      else wgmma_k32<Step::kTiles>(part[p], rows + ks * 2, x + ks * 2, ks != 0);
    }
    wgmma_commit();
  }
  if constexpr (Step::kTurns) bar_arrive(3 - place.group, 32 * kW4axWarps);
#pragma unroll
  for (int p = 0; p < Step::kProducts; ++p) {
    const int h = pass + p / Step::kSplit;
    float row_scale[2];
    if constexpr (Kind::kNibbles) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = place.warp * 32 + 8 * row_eight<Kind>(h, i) + FragmentC<float>::row(place.lane);
        row_scale[i] = __uint_as_float(ld_shared(at + Step::kStage.w_scales + row * 4)) * unpower;
      }
    }
    if (p + 1 < Step::kProducts) wgmma_wait<1>();
    else wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < Step::kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) keep_here(part[p][t][i]);
    add_part<Kind, T>(sum[h], part[p], p % Step::kSplit * Step::kTiles, row_scale, at + Step::kStage.x_scales,
                      place.lane);
  }
}

#endif

}  // namespace lpq::cuda
