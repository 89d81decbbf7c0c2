// Which steps a block of scaled.cuh does, and what brings them: three threads copy by TMA to two rings. (A copy takes a
// thread about a hundred cycles: one thread for all could not keep up.)
#pragma once
#include "cuda/gemm/families/scaled.h"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/griddepcontrol.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A block's steps in order: its run of the shared items, then whole items in turn.
struct ScaledWalk {
  int first, last;  // of the shared items' steps
  int steps;        // in all
  int item, kb, end;

  __device__ __forceinline__ ScaledWalk(const ScaledArgs& a, int k_blocks) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const EvenRuns runs(a.shared_items, k_blocks, a.shared_blocks);
    first = last = 0;
    if (block < a.shared_blocks) first = runs.first(block), last = runs.first(block + 1);
    const int whole = a.items - a.shared_items;
    steps = last - first + (block < whole ? (whole - 1 - block) / blocks + 1 : 0) * k_blocks;
    if (first < last) item = first / k_blocks, kb = first % k_blocks, end = min(k_blocks, kb + last - first);
    else item = a.shared_items + block, kb = 0, end = k_blocks;
  }
  // One step on: true where the item, or the run, ends there.
  __device__ __forceinline__ bool on() { return ++kb == end; }
  __device__ __forceinline__ void next_item(const ScaledArgs& a, int k_blocks) {
    const bool shared = item < a.shared_items;
    const int left = shared ? last - (item * k_blocks + kb) : 0;  // of the run
    item = left > 0 ? item + 1
           : shared ? a.shared_items + static_cast<int>(blockIdx.x)
                    : item + static_cast<int>(gridDim.x);
    kb = 0, end = left > 0 ? min(k_blocks, left) : k_blocks;
  }
};
// The first packed block of the strip and the first token of an item.
__device__ __forceinline__ void scaled_place(const ScaledArgs& a, int width, int tokens, int item, int& block,
                                             int& token) {
  if (a.token_tiles == 1) {
    block = item * width, token = 0;
    return;
  }
  const int group = item / (a.together * a.strips), rest = item - group * a.together * a.strips,
            tiles = min(a.together, a.token_tiles - group * a.together);
  block = rest / tiles * width, token = (group * a.together + rest % tiles) * tokens;
}

// The token that an item's boxes begin with: the last tile begins early enough to end with the tokens, since TMA takes
// twice as long for rows beyond the tensor. Tokens that it shares with the tile before are multiplied twice and stored
// by that one.
__device__ __forceinline__ int first_token(const GemmPackedArgs& g, const ScaledArgs& a, int token) {
  return min(token, max(0, g.m - a.rows));
}

// All steps of the block, by one thread each: role 0 packed blocks, 1 and 2 activations, every other slab of 64 k.
// Weights may come before the operation before has ended, activations may not.
template <int B, int T, int Width>
__device__ __forceinline__ void produce_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps,
                                               const TmaStage& place, const TmaPipeline& weights,
                                               const TmaPipeline& activations, uint32_t ring, uint32_t x_ring,
                                               int role) {
  ScaledWalk walk(a, g.k_blocks);
  int block = 0, token = 0;
  PipelineState at;
  if (role == 2) at.stage = 1;
  if (role > 0 && a.overlap) {
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    if (role == 1) griddepcontrol_launch_dependents();
  }
  for (int step = 0; step < walk.steps; ++step) {
    if (step == 0 || walk.kb == 0)
      scaled_place(a, Width, 8 * T, walk.item, block, token), token = first_token(g, a, token);
    if (role == 0) {
      weights.producer_acquire(at);
      const uint32_t full = weights.producer_commit(at.stage, place.filled);
      const uint32_t to = ring + at.stage * place.bytes;
      place.load_words<B>(maps, to, block, walk.kb, false, full);
      place.load_factors(g, maps, to, block, walk.kb, g.groups_per_block, full);
      at.advance(g.stages);
    } else {
      activations.producer_acquire(at);
      const uint32_t full = activations.producer_commit(at.stage, a.rows * 128);
      tma_load_3d(x_ring + at.stage * (8 * T * 128), &maps.x, 0, token, 2 * walk.kb + role - 1, full);
      at.stage += 2;
      if (at.stage >= a.slabs) at.stage -= a.slabs, at.parity ^= 1;
    }
    if (walk.on()) walk.next_item(a, g.k_blocks);
  }
}

#endif

}  // namespace lpq::cuda
