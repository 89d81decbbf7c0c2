// What brings the steps of scaled.cuh: three threads copy by TMA to two rings. (A copy takes a
// thread about a hundred cycles: one thread for all could not keep up.)
#pragma once
#include "cuda/gemm/kernels/scaled/walk.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/griddepcontrol.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// All steps of the block, by one thread each: role 0 packed blocks, 1 and 2 activations, every other slab of 64 k.
// Weights may come before the operation before has ended, activations may not. place_of(item): the first packed block
// of its strip and the first token of its box.
template <int B, int T, class PlaceOf>
__device__ __forceinline__ void produce_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps,
                                               const TmaStage& place, const TmaPipeline& weights,
                                               const TmaPipeline& activations, uint32_t ring, uint32_t x_ring, int role,
                                               const PlaceOf& place_of) {
  ScaledWalk walk(a, g.k_blocks);
  ScaledPlace of{};
  PipelineState at;
  if (role == 2) at.stage = 1;
  if (role > 0 && a.overlap) {
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    if (role == 1) griddepcontrol_launch_dependents();
  }
  for (int step = 0; step < walk.steps; ++step) {
    if (step == 0 || walk.kb == 0) of = place_of(walk.item);
    if (role == 0) {
      weights.producer_acquire(at);
      const uint32_t full = weights.producer_commit(at.stage, place.filled);
      const uint32_t to = ring + at.stage * place.bytes;
      place.load_words<B>(maps, to, of.block, walk.kb, false, full);
      place.load_factors(g, maps, to, of.block, walk.kb, g.groups_per_block, full);
      at.advance(g.stages);
    } else {
      activations.producer_acquire(at);
      const uint32_t full = activations.producer_commit(at.stage, a.rows * 128);
      tma_load_3d(x_ring + at.stage * (8 * T * 128), &maps.x, 0, of.token, 2 * walk.kb + role - 1, full);
      at.stage += 2;
      if (at.stage >= a.slabs) at.stage -= a.slabs, at.parity ^= 1;
    }
    if (walk.on()) walk.next_item(a, g.k_blocks);
  }
}

#endif

}  // namespace lpq::cuda
