// The same product as wide.cuh for many tokens, with MARLIN's arithmetic: w = (code - zero) * scale rounded to f16
// or bf16 once, as if weights were dequantized first. Sums then need no scales, so the accumulators have all the
// registers. Two forms, of eight warps that multiply, two warpgroups of 4 warps:
//  - two halves (P = 2): a block takes 256 rows and up to 128 tokens, a warp a packed block of 32 rows, both of its
//    16-row halves;
//  - one half (P = 1): 128 rows and up to 256 tokens. Both warpgroups have the same four packed blocks; the first
//    multiplies rows 0 to 15 of each (row classes r = 0, 1), the second rows 16 to 31 (r = 2, 3). So a code is cast
//    once for 256 tokens, not once for 128. (warp, lane, pair i of 16 of K) -> (n = 32 slot + 16 half + 8 (i & 1) +
//    lane / 4, k = 8 (i >> 1) + 2 (lane % 4) and the next), where slot = warp % 4 and half = warp / 4; with two halves
//    slot = warp and half is the number of the product.
// While products run, pairs are made 32 of K ahead of them, 16 at a time between two products (a warp that has issued
// products waits until the tensor core takes them, so all products of a block and then all its pairs would leave either
// idle): four sets of registers. Items are done whole, in an order in which blocks that run at once share activations
// and weights in L2; those that do not fill all multiprocessors are cut along K, and come first. As many blocks an item
// add up a share of its tokens each, kept in their registers while the other sums go through the workspace or, where
// they are a cluster, through shared memory; or, in equal runs, the one that begins an item adds the others' sums to
// its own. Three producer threads fill two rings of stages by TMA: packed blocks of K with their scales, and
// activations, 64 of k at a time.
#pragma once
#include "cuda/gemm/kernels/scaled/epilogue.cuh"
#include "cuda/gemm/kernels/scaled/producer.cuh"
#include "cuda/gemm/kernels/scaled/products.cuh"
#include "cuda/gemm/kernels/scaled/rings.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Sums with the bias to y.
template <int P, bool BF, class Args = GemmPackedArgs>
struct ScaledOutputs {
  const Args& g;
  const bool vectors;
  const int lane;
  template <int Units, class Sums>
  __device__ __forceinline__ void store(int row0, int token0, int least, uint32_t staging, const Sums& sums) const {
    store_tokens<BF, P, Units>(g, vectors, row0, token0, least, staging, lane, sums);
  }
};

template <int B, int T, int P, int G, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ void gemm_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps) {
  static_assert(P == 1 ? T % 4 == 0 : T % 2 == 0);
  constexpr int kWarps = 8 * G, kWidth = 4 * P * G;
  constexpr bool kRoomy = G == 1 && scaled_residents(T, P, G) == 1;
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k: [8 T tokens][128 bytes]
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int per_block = g.groups_per_block;  // groups
  const TmaStage place(g, 0, kWidth * 512 * B, kWidth * per_block, 128);
  const ScaledRings rings(shared_address(dynamic_shared()));
  const TmaPipeline &weights = rings.weights, &activations = rings.activations;
  const uint32_t x_ring = rings.stages(), ring = x_ring + a.slabs * kSlab;

  if (threadIdx.x == blockDim.x - 1) prefetch_maps(g, maps);
  rings.init<T, P>(a, g.stages, kWarps);

  if (warp >= kWarps) {
    setmaxnreg_dec<kRoomy ? 40 : 24>();
    if (lane == 0 && warp - kWarps <= 2)
      produce_scaled<B, T>(g, a, maps, place, weights, activations, ring, x_ring, warp - kWarps,
                           [&](int item) { return scaled_box(a, kWidth, 8 * T, item); });
    return;
  }

  setmaxnreg_inc<kRoomy ? 232 : G == 2 ? 112 : 104>();
  const uint32_t unknown = rings.unknown_zero(lane);
  const ScaledCast<B, BF, Integer, Zeros> cast(g, a, unknown);
  const int slot = P == 1 ? (warp >> 3) * 4 + (warp & 3) : warp, first_half = P == 1 ? warp >> 2 & 1 : 0;
  ScaledWalk walk(a, g.k_blocks);
  auto multiplier =
      scaled_multiplier<B, T, P, Zeros, BF, Integer>(g, a, cast, rings, place, ring, x_ring, slot, lane, unknown, walk);
  using Outputs = ScaledOutputs<P, BF>;
  ScaledEpilogue<T, P, G, float, GemmPackedArgs, Outputs> epilogue{g,
                                                                   a,
                                                                   rings.barriers,
                                                                   lane,
                                                                   warp,
                                                                   slot * kBlockN + 16 * first_half,
                                                                   multiplier.sum,
                                                                   Outputs{g, a.vectors != 0, lane}};
  int began = walk.kb;
  while (multiplier.step < walk.steps) {
    if (P == 2 || first_half == 0) multiplier.template multiply_item<0>();
    else multiplier.template multiply_item<1>();
    epilogue.finish(walk.item, began, walk.kb);
    walk.next_item(a, g.k_blocks);
    began = walk.kb;
  }
}

#endif

}  // namespace lpq::cuda

// kind c: constant whole zero points, and floats; z: all else. tiles: eights of tokens; halves: P; pairs: G.
#if LPQ_HAS_WGMMA
#define LPQ_GEMM_SCALED(name, kind, tiles, halves, pairs, bits, zeros, bf, integer)                              \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::scaled_threads(pairs),                                 \
                                               lpq::cuda::scaled_residents(tiles, halves, pairs))                \
      lpq_gemm_##name##_##kind##tiles##x##halves##x##pairs(const __grid_constant__ lpq::cuda::GemmPackedArgs g,  \
                                                           const __grid_constant__ lpq::cuda::ScaledArgs a,      \
                                                           const __grid_constant__ lpq::cuda::PackedMaps maps) { \
    lpq::cuda::gemm_scaled<bits, tiles, halves, pairs, zeros, bf, integer>(g, a, maps);                          \
  }
#else
#define LPQ_GEMM_SCALED(name, kind, tiles, halves, pairs, bits, zeros, bf, integer)
#endif
