// A stage of shared memory that TMA fills with packed blocks: activations in front, words, scales and zero points of
// each block's groups.
#pragma once
#include "cuda/gemm/families/packed.h"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/tma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_TMA
// By one thread, before anything else.
__device__ __forceinline__ void prefetch_maps(const GemmPackedArgs& g, const PackedMaps& maps) {
  prefetch_tensor_map(&maps.weights);
  prefetch_tensor_map(&maps.scales);
  prefetch_tensor_map(&maps.x);
  if (g.zero_kind) prefetch_tensor_map(&maps.zeros);
}

struct TmaStage {
  int weights_at, scales_at, zeros_at, filled, bytes;  // filled: what the copies bring, without what aligns them

  // `groups`: of all blocks of the stage, 32 scales each. Stages and zero points begin at multiples of so many bytes.
  __device__ __forceinline__ TmaStage(const GemmPackedArgs& g, int x_bytes, int word_bytes, int groups, int alignment,
                                      int zero_alignment = 128)
      : weights_at(x_bytes), scales_at(x_bytes + word_bytes) {
    const int scale_bytes = groups * 64, zero_bytes = groups * 32 * g.zero_kind;
    zeros_at = scales_at + ((scale_bytes + zero_alignment - 1) & -zero_alignment);
    filled = scales_at + scale_bytes + zero_bytes, bytes = (zeros_at + zero_bytes + alignment - 1) & -alignment;
  }
  // Words of the blocks from (nb, kb) on, B bits, to the stage at `to`, and what their groups have. Boxes are whole
  // beyond the tensors too, with zeros. once: nobody reads the words again.
  template <int B>
  __device__ __forceinline__ void load_words(const PackedMaps& maps, uint32_t to, int nb, int kb, bool once,
                                             uint32_t full) const {
    if (once) tma_load_3d_evict_first(to + weights_at, &maps.weights, 0, kb * B, nb, full);
    else tma_load_3d(to + weights_at, &maps.weights, 0, kb * B, nb, full);
  }
  __device__ __forceinline__ void load_factors(const GemmPackedArgs& g, const PackedMaps& maps, uint32_t to, int nb,
                                               int kb, int groups_per_block, uint32_t full) const {
    const int group = g.channel ? 0 : kb * groups_per_block;
    tma_load_3d(to + scales_at, &maps.scales, 0, group, nb, full);
    if (g.zero_kind) tma_load_3d(to + zeros_at, &maps.zeros, 0, group, nb, full);
  }
};
#endif

}  // namespace lpq::cuda
