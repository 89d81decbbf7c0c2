// gemm_packed for many tokens on devices without wgmma (sm_80 and its like): mma.m16n8k16 from the packed format
// (docs/internals/kernels/large.md).
//
// A block's tile is 256 columns by 8 T tokens. Each of eight warps owns 32 columns and all tokens, so every weight is
// dequantized by one
// warp alone: beside the products it is the number of instructions that this kernel's time depends on
// (docs/internals/kernels/large.md).
//
//   (lane, reg) -> (n, k) of a warp's operand A, 16 columns by 16 k: reg i holds n = lane / 4 + 8 (i % 2), k = 2 (lane
//   % 4) + 8 (i / 2) and the next k
//   (lane, reg) -> (k, m) of operand B, 16 k by 8 tokens:            reg i holds k = 2 (lane % 4) + 8 i and the next, m
//   = lane / 4 (lane, reg) -> (n, m) of the sums:                               reg i holds n = lane / 4 + 8 (i / 2), m
//   = 2 (lane % 4) + i % 2
//
// Everything comes through a ring in shared memory (cp.async) of stages of 64 k: activations, and half of each packed
// block's words. Fragments are a product of 16 k ahead: activations are fetched again (ldmatrix) as soon as both
// fragments of weights have met them, and the next weights are cast meanwhile. A stage's barrier stands in its last
// product.
//
// The arithmetic is MARLIN's (its section 3.4): weights are dequantized in registers with the scale in the cast, w =
// T((q - z) s) rounded once to the type T of the activations, and the tensor core adds up all of K. q - z is exact
// where z is a whole number that T takes off exactly (f16: to 1024; bf16: to 128, of 8 bits 256); other zero points are
// TurboMind's, w = T(q s + T(-z s)). With bf16 activations f16 scales are rounded to bf16 first. So |w - W| <= u |W| (2
// u with rounded scales) + u |z s| where z is not whole, u = 2^-11 or 2^-8, and 2^-25 where f16 is subnormal; a weight
// beyond 65504 is infinite in f16.
//
// Tiles are whole where they fill the multiprocessors evenly; else each block owns an equal run of steps, and whoever
// is last with a tile that several blocks share adds up all parts in fp32 in the order of K.
#pragma once
#include "cuda/gemm/kernels/large/epilogue.cuh"
#include "cuda/gemm/kernels/large/producer.cuh"
#include "cuda/gemm/kernels/large/weights.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

// All tiles of a block. R times 16 columns by W times 8 tokens are a warp's, whose first column of the strip is n0 and
// first token of the tile m0.
template <int R, int W, int T, bool BF, class Weights>
__device__ __forceinline__ void multiply_tiles(const GemmPackedArgs& g, const LargeArgs& a, Weights& weights,
                                               unsigned char* shared, uint32_t shelf, unsigned* flag, int n0, int m0,
                                               int lane, int warp) {
  const uint32_t ring = shared_address(shared), ring_end = ring + Weights::kStages * Weights::kStage;
  const int steps = g.k_blocks, tiles = g.strips * a.token_tiles;

  LargeWalk walk(a, tiles, steps);
  if (walk.count <= 0) return;
  LargeProducer<R, T, Weights> producer(g, a, weights, walk, steps, tiles, ring, ring_end);
  constexpr int kSlots = 2 * R;
  // Stages that are ahead: an even number, so that the half which is copied is the half at hand.
  static_assert(Weights::kStages % 2 == 1);
  each<0, Weights::kStages - 1>([&](auto which) {
    constexpr int S = decltype(which)::value;
    each<0, kSlots>([&](auto place) { producer.template copy<S % 2, decltype(place)::value>(S < 2 * walk.count); });
    producer.template commit<S % 2>(S < 2 * walk.count, S % 2);
    if (S + 2 < Weights::kStages) weights.prepare(S % 2);
  });

  float sum[R][W][4];
  clear_sums(sum);

  // Activations of 16 k, in two halves of a warp's tokens: matrix i of ldmatrix is tokens 8 (i / 2) and 8 of K from 8
  // (i % 2).
  uint32_t x[2][W / 4][4], w[2][R][4];
  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t x_at = (m0 + row7 + 8 * (matrix >> 1)) * 128 + (((matrix & 1) ^ row7) << 4);
  uint32_t stage = ring;
  const auto activations = [&](int part, int ks) {
    const uint32_t from = ((stage + x_at) ^ (ks << 5)) + part * (W / 4) * 2048;
#pragma unroll
    for (int t = 0; t < W / 4; ++t) ldmatrix_x4(x[part][t], from + t * 2048);
  };

  cp_async_wait<Weights::kStages - 2>();
  __syncthreads();
  activations(0, 0), activations(1, 0);
  weights.template fetch<0>(stage, 0);
  each<0, R>([&](auto row) { weights.template make<0, decltype(row)::value>(w[0][decltype(row)::value]); });

  int strip, tokens;
  int left = 2 * walk.count - Weights::kStages + 1;  // stages of 64 k that are still to be copied
  // The Q-th product of 16 k, and the fragments of the next: activations as soon as their registers are free. After the
  // barrier in the last product of a stage, the stage before it is free.
  const auto product = [&](auto which, int half) {
    constexpr int Q = decltype(which)::value, kNext = (Q + 1) % Weights::kProducts, H = Q / 4;
    const auto multiply_part = [&](auto row, int part) {
      constexpr int P = decltype(row)::value;
#pragma unroll
      for (int t = 0; t < W / 4; ++t) {
        const int at = part * (W / 2) + 2 * t;
        mma_m16n8k16<BF>(sum[P][at], w[Q % 2][P], x[part][t][0], x[part][t][1]);
        mma_m16n8k16<BF>(sum[P][at + 1], w[Q % 2][P], x[part][t][2], x[part][t][3]);
      }
    };
    each<0, R>([&](auto row) {
      multiply_part(row, 0);
      if constexpr (Q % 4 < 2) producer.template copy<H, Q % 4 * R + decltype(row)::value>(left > 0);
    });
    if constexpr (Q % 4 == 3) {
      cp_async_wait<Weights::kStages - 2>();
      __syncthreads();
      stage += Weights::kStage;
      if (stage == ring_end) stage = ring;
    }
    weights.template fetch<kNext>(stage, Q % 4 == 3 ? half ^ 1 : half);
    activations(0, kNext % 4);
    each<0, R>([&](auto row) {
      multiply_part(row, 1);
      weights.template make<kNext, decltype(row)::value>(w[kNext % 2][decltype(row)::value]);
    });
    activations(1, kNext % 4);
    if constexpr (Q % 4 == 1) {
      weights.prepare(half ^ 1);
      producer.template commit<H>(left > 0, half);
      --left;
    }
  };
  while (walk.count > 0) {
    place_tile(g, a, walk.tile, strip, tokens);
    const int run = min(walk.count, steps - walk.step);
    for (int i = 0; i < 2 * run; i += Weights::kProducts / 4) {
      const int half = i & 1;
      product(Constant<0>(), half), product(Constant<1>(), half), product(Constant<2>(), half),
          product(Constant<3>(), half);
      if constexpr (Weights::kProducts == 8)
        product(Constant<4>(), 1), product(Constant<5>(), 1), product(Constant<6>(), 1), product(Constant<7>(), 1);
    }
    bool finishes = true;
    if (a.per > 0) {
      const FixedRuns runs{steps, a.per};
      const TileSharers sharers = runs.sharers(walk.tile);
      if (sharers.to > sharers.from)
        finishes = gather_tile(sum, g.counters + walk.tile, flag, sharers, [&](int block) {
          return reinterpret_cast<float4*>(g.partial) +
                 (static_cast<long long>(2 * block + runs.part(walk.tile, block)) * kLargeWarps + warp) * (R * W * 32) +
                 lane;
        });
    }
    if (finishes) store_tile<R, W, BF>(g, a.vectors != 0, sum, strip * 256 + n0, tokens * 8 * T + m0, shelf, lane);
    clear_sums(sum);
    walk.count -= run, walk.step = 0, walk.tile += walk.stride;
  }
}

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_large(const GemmPackedArgs& g, const LargeArgs& a) {
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  using Weights = LargeWeights<B, T, BF, Cast>;
  constexpr int kRing = Weights::kStages * Weights::kStage, kShelves = kRing + kLargeFactors;
  Weights weights(g, shared_address(shared) + kRing, lane, warp);
  unsigned* const flag = reinterpret_cast<unsigned*>(shared + kShelves + kLargeWarps * kLargeShelf);
  multiply_tiles<2, T, T, BF>(g, a, weights, shared, shared_address(shared) + kShelves + warp * kLargeShelf, flag,
                              warp * kBlockN, 0, lane, warp);
}

template <int B, bool BF>
using WholeIntCast = IntCast<B, BF, true>;

}  // namespace lpq::cuda

#define LPQ_LARGE_T(name, tiles, bits, bf, cast)                                                             \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kLargeWarps, 1) lpq_large_##name##_t##tiles(  \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) { \
    lpq::cuda::gemm_large<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, a);                                 \
  }
// Hopper has kernels of its own and takes these for comparisons alone: the widest tiles of some types, or all with
// LPQ_LARGE_ALL.
#if LPQ_PORTABLE_RUNS || defined(LPQ_LARGE_ALL)
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast) \
  LPQ_LARGE_T(name, 4, bits, bf, cast)            \
  LPQ_LARGE_T(name, 8, bits, bf, cast)            \
  LPQ_LARGE_T(name, 16, bits, bf, cast)
#define LPQ_LARGE LPQ_LARGE_ELSEWHERE
#else
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast)
#define LPQ_LARGE(name, bits, bf, cast) LPQ_LARGE_T(name, 16, bits, bf, cast)
#endif
