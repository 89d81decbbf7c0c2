// y = x Wᵀ of activations of 8 bits and weights of 8 or 4 (products.cuh has the kinds): sums of all of K where no scale
// lies inside, else sums of 128 of k that are scaled and added up in fp32. Walk, planner and fixup are those of
// scaled.cuh: a block takes 128 G rows, a warp 16 of them, and 8 T tokens; G pairs of warpgroups multiply, a further
// one copies. Weights are operand A in registers, activations operand B in shared memory.
//  - bytes: ldmatrix of rows of 128 bytes, swizzled: (lane, reg) -> n = lane / 4 + 8 (reg % 2), k = 4 (lane % 4) + byte
//  +
//    16 (reg / 2);
//  - nibbles (docs/internals/layouts/comet.md): word i of vector v of a lane, nibbles `high` -> (lane, reg i % 2 + 2
//    high) of 32 k number 2 v + i / 2: the same n and k.
// Sums: (lane, [t][reg]) -> row lane / 4 + 8 (reg / 2), token 8 t + 2 (lane % 4) + reg % 2.
#pragma once
#include "cuda/gemm/kernels/act8/producer.cuh"
#include "cuda/gemm/kernels/act8/products.cuh"
#include "cuda/gemm/kernels/scaled/epilogue.cuh"
#include "cuda/gemm/kernels/scaled/rings.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Sums times the scales of row and token, with the bias, to y.
template <class Source>
struct Act8Outputs {
  const Act8Args& g;
  const bool vectors;
  const int lane;

  // `Units` of 16 tokens; sums(t, 0, i): register i of the t-th eight.
  template <int Units, class Sums>
  __device__ __forceinline__ void store(int row0, int token0, int least, uint32_t staging, const Sums& sums) const {
    using C = FragmentC<float>;
    float scale[2], bias[2], x_scale[2 * Units][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int n = row0 + 8 * c + C::row(lane);
      // Scales of groups are in the sums.
      scale[c] = Source::kFactorBytes == 4 ? 1.0f : n < g.n ? __ldg(g.w_scales + n) * Source::kUnit : 0.0f;
      bias[c] = g.bias && n < g.n ? __ldg(g.bias + n) : 0.0f;
    }
    // Not __ldg: the operation before may have written them while this one ran.
#pragma unroll
    for (int t = 0; t < 2 * Units; ++t)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int m = token0 + 8 * t + C::column(lane, j);
        x_scale[t][j] = Source::kTokenScales ? 1.0f : m < g.m ? g.x_scales[m] : 0.0f;
      }
    const auto value = [&](int t, int c, int j) {
      return __fadd_rn(__fmul_rn(static_cast<float>(sums(t, 0, 2 * c + j)), __fmul_rn(x_scale[t][j], scale[c])),
                       bias[c]);
    };
    if (g.store == kW4axStoreF32) {
#pragma unroll
      for (int t = 0; t < 2 * Units; ++t)
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int n = row0 + 8 * c + C::row(lane), m = token0 + 8 * t + C::column(lane, j);
            if (n < g.n && m < g.m && m >= least)
              static_cast<float*>(g.y)[static_cast<long long>(m) * g.n + n] = value(t, c, j);
          }
      return;
    }
    const bool bf16 = g.store == kW4axStoreBf16;
    store_transposed<1, Units>(
        {static_cast<uint16_t*>(g.y), g.m, g.n, vectors}, row0, token0, least, staging, lane, [&](int u, int i) {
          const float even = value(2 * u + (i >> 1), i & 1, 0), odd = value(2 * u + (i >> 1), i & 1, 1);
          return bf16 ? cvt_x2<true>(even, odd) : cvt_x2<false>(even, odd);
        });
  }
};

template <class Source, int T, int G>
__device__ __forceinline__ void gemm_act8(const Act8Args& g, const ScaledArgs& a, const Act8Maps& maps) {
  static_assert(T % 2 == 0);
  constexpr int kWarps = 8 * G, kWidth = 4 * G;
  constexpr bool kRoomy = G == 1 && scaled_residents(T, 1, G) == 1;
  constexpr Act8Stage kStage(kWidth * kBlockN, Source::kNibbles, Source::kFactorBytes);
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const ScaledRings rings(shared_address(dynamic_shared()));
  const TmaPipeline &weights = rings.weights, &activations = rings.activations;
  const uint32_t x_ring = rings.stages(), w_ring = x_ring + a.slabs * (8 * T * 128);

  if (threadIdx.x == blockDim.x - 1) {
    prefetch_tensor_map(&maps.weights), prefetch_tensor_map(&maps.x);
    if constexpr (Source::kFactorBytes > 0) prefetch_tensor_map(&maps.factors);
    if constexpr (Source::kTokenScales) prefetch_tensor_map(&maps.x_scales);
  }
  rings.init<T, 1>(a, g.stages, kWarps);

  if (warp >= kWarps) {
    setmaxnreg_dec<kRoomy ? 40 : 24>();
    if (lane == 0 && warp == kWarps)
      produce_act8_weights<Source::kNibbles, Source::kFactorBytes, T, kWidth>(g, a, maps, weights, w_ring);
    if (lane == 0 && warp == kWarps + 1)
      produce_act8_activations<Source::kTokenScales, T, kWidth>(g, a, maps, activations, x_ring);
    return;
  }
  setmaxnreg_inc<kRoomy ? 232 : G == 2 ? 112 : 104>();
  const uint32_t unknown = rings.unknown_zero(lane);
  ScaledWalk walk(a, g.k_blocks);
  Act8Multiplier<Source, T> multiplier{g,
                                       a,
                                       weights,
                                       activations,
                                       x_ring,
                                       x_ring - 1024 + a.scales_at + 8 * (lane & 3),
                                       kStage.bytes,
                                       lane,
                                       walk,
                                       {w_ring, kStage.factors_at, warp, lane, unknown}};
  using Outputs = Act8Outputs<Source>;
  ScaledEpilogue<T, 1, G, typename Act8Multiplier<Source, T>::Sum, Act8Args, Outputs> epilogue{
      g, a, rings.barriers, lane, warp, warp * 16, multiplier.sum, Outputs{g, a.vectors != 0, lane}};
  int began = walk.kb;
  while (multiplier.step < walk.steps) {
    multiplier.multiply_item();
    if (a.overlap) griddepcontrol_wait();  // the scales of tokens, too, are the operation's before
    epilogue.finish(walk.item, began, walk.kb);
    walk.next_item(a, g.k_blocks);
    began = walk.kb;
  }
}

#endif

}  // namespace lpq::cuda

// tiles: eights of tokens; pairs: G. Compiled for sm_90a alone (scripts/build-cuda.mjs).
#if LPQ_HAS_WGMMA
#define LPQ_GEMM_ACT8(source, name, tiles, pairs)                                                    \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::scaled_threads(pairs),                     \
                                               lpq::cuda::scaled_residents(tiles, 1, pairs))         \
      lpq_gemm_act8_##name##_##tiles##x1x##pairs(const __grid_constant__ lpq::cuda::Act8Args g,      \
                                                 const __grid_constant__ lpq::cuda::ScaledArgs a,    \
                                                 const __grid_constant__ lpq::cuda::Act8Maps maps) { \
    lpq::cuda::gemm_act8<lpq::cuda::source, tiles, pairs>(g, a, maps);                               \
  }
#else
#define LPQ_GEMM_ACT8(source, name, tiles, pairs)
#endif
