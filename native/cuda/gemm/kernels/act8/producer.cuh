// What brings the steps of act8.cuh: two threads copy by TMA, 128 of k a stage, one weights with their factors, one
// activations.
#pragma once
#include "cuda/gemm/families/act8.h"
#include "cuda/gemm/kernels/scaled/walk.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/tma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Weights may come before the operation before has ended, activations may not.
template <bool Nibbles, int FactorBytes, int T, int Width>
__device__ __forceinline__ void produce_act8_weights(const Act8Args& g, const ScaledArgs& a, const Act8Maps& maps,
                                                     const TmaPipeline& weights, uint32_t ring) {
  constexpr Act8Stage kStage(Width * kBlockN, Nibbles, FactorBytes);
  ScaledWalk walk(a, g.k_blocks);
  ScaledPlace of{};
  PipelineState at;
  for (int step = 0; step < walk.steps; ++step) {
    if (step == 0 || walk.kb == 0) of = scaled_place(a, Width, 8 * T, walk.item);
    weights.producer_acquire(at);
    const uint32_t full = weights.producer_commit(at.stage, kStage.filled), to = ring + at.stage * kStage.bytes;
    if constexpr (Nibbles) tma_load_3d(to, &maps.weights, 0, walk.kb, of.block * 2, full);
    else tma_load_3d(to, &maps.weights, walk.kb * 128, of.block * kBlockN, 0, full);
    // Boxes of f32 are counted in eights of bytes.
    if constexpr (FactorBytes > 0)
      tma_load_3d(to + kStage.factors_at, &maps.factors, of.block * kBlockN / (FactorBytes == 4 ? 2 : 1), walk.kb, 0,
                  full);
    at.advance(g.stages);
    if (walk.on()) walk.next_item(a, g.k_blocks);
  }
}

template <bool TokenScales, int T, int Width>
__device__ __forceinline__ void produce_act8_activations(const Act8Args& g, const ScaledArgs& a, const Act8Maps& maps,
                                                         const TmaPipeline& activations, uint32_t ring) {
  ScaledWalk walk(a, g.k_blocks);
  ScaledPlace of{};
  PipelineState at;
  if (a.overlap) {
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    griddepcontrol_launch_dependents();
  }
  for (int step = 0; step < walk.steps; ++step) {
    if (step == 0 || walk.kb == 0) of = scaled_box(a, Width, 8 * T, walk.item);
    activations.producer_acquire(at);
    const uint32_t full = activations.producer_commit(at.stage, a.rows * (TokenScales ? 132 : 128));
    tma_load_3d(ring + at.stage * (8 * T * 128), &maps.x, walk.kb * 128, of.token, 0, full);
    if constexpr (TokenScales)
      tma_load_3d(ring - 1024 + a.scales_at + at.stage * scaled_token_bytes(T), &maps.x_scales, of.token, walk.kb, 0,
                  full);
    at.advance(a.slabs);
    if (walk.on()) walk.next_item(a, g.k_blocks);
  }
}

#endif

}  // namespace lpq::cuda
