// The product of experts.cuh for tiles of 8 T rows, with the parts of scaled.cuh: MARLIN's arithmetic, weights rounded
// once to the type of x as they are cast, so that sums need no scales. A block has 128 P rows of weights, a strip;
// items and their order are those of experts/items.cuh, boxes bring what they bring to experts_sm90.cuh. The
// multiprocessors do whole items in turn. What is left of them is cut along K (experts/shares.cuh), and comes first.
//
//   (warp, lane, pair i of 16 of K) -> (n = 32 slot + 16 half + 8 (i & 1) + lane / 4, k = 8 (i >> 1) + 2 (lane % 4) and
//   the next), slot and half as in scaled.cuh
#pragma once
#include "cuda/gemm/kernels/experts/items.cuh"
#include "cuda/gemm/kernels/experts/shares.cuh"
#include "cuda/gemm/kernels/scaled.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// `given`: without what only the offsets tell: items, and how they are shared. The plan lies at given.received_at.
template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ void gemm_experts_scaled(const GemmPackedArgs& g, const ScaledArgs& given,
                                                    const ExpertArgs& experts, const PackedMaps& maps) {
  constexpr int kWarps = 8, kWidth = 4 * P;
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k: [8 T tokens][128 bytes]
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int per_block = g.groups_per_block;  // groups
  const TmaStage place(g, 0, kWidth * 512 * B, kWidth * per_block, 128);
  unsigned char* const shared = dynamic_shared();
  const ScaledRings rings(shared_address(shared));
  const TmaPipeline &weights = rings.weights, &activations = rings.activations;
  const uint32_t x_ring = rings.stages(), ring = x_ring + given.slabs * kSlab;

  if (threadIdx.x == blockDim.x - 1) prefetch_maps(g, maps);
  griddepcontrol_wait_and_launch();
  int* const plan = reinterpret_cast<int*>(shared + given.received_at);
  if (warp == 0) ExpertItems<T>::make(experts, g.m, plan, lane);
  rings.init<T, P>(given, g.stages, kWarps);  // with the block's barrier
  const ExpertItems<T> items(plan, experts.experts, g.strips);
  ScaledArgs a = given;
  share_items(a, items.count(), g.k_blocks, static_cast<int>(gridDim.x));

  if (warp >= kWarps) {
    setmaxnreg_dec<40>();
    if (lane == 0 && warp - kWarps <= 2) {
      fence_proxy_async();  // x was written by the operation before
      produce_scaled<B, T>(g, a, maps, place, weights, activations, ring, x_ring, warp - kWarps, [&](int item) {
        const ExpertItem of = items.at(item);
        return ScaledPlace{of.expert * g.n_blocks + of.strip * kWidth, of.row};
      });
    }
    return;
  }

  setmaxnreg_inc<232>();
  const uint32_t unknown = rings.unknown_zero(lane);
  const ScaledCast<B, BF, Integer, Zeros> cast(g, a, unknown);
  const int slot = P == 1 ? warp & 3 : warp, first_half = P == 1 ? warp >> 2 & 1 : 0;
  ScaledWalk walk(a, g.k_blocks);
  auto multiplier =
      scaled_multiplier<B, T, P, Zeros, BF, Integer>(g, a, cast, rings, place, ring, x_ring, slot, lane, unknown, walk);
  using Outputs = ScaledOutputs<P, BF, ExpertProduct>;
  int began = walk.kb;
  while (multiplier.step < walk.steps) {
    if (P == 2 || first_half == 0) multiplier.template multiply_item<0>();
    else multiplier.template multiply_item<1>();
    const ExpertItem of = items.at(walk.item);
    const ExpertProduct own = product_of<B>(g, experts, of);
    ScaledEpilogue<T, P, 1, float, ExpertProduct, Outputs> epilogue{own,
                                                                    a,
                                                                    rings.barriers,
                                                                    lane,
                                                                    warp,
                                                                    slot * kBlockN + 16 * first_half,
                                                                    multiplier.sum,
                                                                    Outputs{own, a.vectors != 0, lane}};
    epilogue.finish(walk.item, {of.strip * kWidth, 0}, began, walk.kb);
    walk.next_item(a, g.k_blocks);
    began = walk.kb;
  }
}

#endif

}  // namespace lpq::cuda

// kind c: constant whole zero points, and floats; z: all else. tiles: eights of rows of x; halves: P.
#if LPQ_HAS_WGMMA
#define LPQ_EXPERTS_SCALED(name, kind, tiles, halves, bits, zeros, bf, integer)                                        \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::scaled_threads(1), 1)                                        \
      lpq_experts_##name##_##kind##tiles##x##halves(                                                                   \
          const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::ScaledArgs a,        \
          const __grid_constant__ lpq::cuda::ExpertArgs experts, const __grid_constant__ lpq::cuda::PackedMaps maps) { \
    lpq::cuda::gemm_experts_scaled<bits, tiles, halves, zeros, bf, integer>(g, a, experts, maps);                      \
  }
#else
#define LPQ_EXPERTS_SCALED(name, kind, tiles, halves, bits, zeros, bf, integer)
#endif
