// A stage of packed.cuh, and the copies that fill it.
#pragma once
#include "cuda/gemm/families/packed.h"
#include "cuda/ptx/cp_async.cuh"

namespace lpq::cuda {

// A stage: activations of 64 k a slab, 128 bytes a token, chunks of 16 xor-ed with the token's number modulo 8; then
// for each warp a slot of words, scales and zero points.
template <int B, int T>
struct PackedStage {
  static constexpr int kSlab = 8 * T * 128;
  int scale_bytes, slot_bytes, x_bytes, bytes;

  __device__ __forceinline__ explicit PackedStage(const GemmPackedArgs& g) : scale_bytes(64 * g.groups_per_block) {
    const int zero_bytes = g.zero_kind == 0 ? 0 : g.zero_kind * scale_bytes / 2;
    slot_bytes = 512 * B + scale_bytes + zero_bytes;
    x_bytes = g.warps_k * 2 * kSlab;
    bytes = (x_bytes + g.warps_n * g.warps_k * slot_bytes + 1023) & ~1023;
  }
};

// What the block's threads copy, a step after the other; of words, scales and zero points each warp its own.
template <int B, int T>
struct PackedProducer {
  const GemmPackedArgs& g;
  const PackedStage<B, T>& place;
  const uint32_t ring;
  const int lane, warp, wn, wk;
  int strip, step, stage = 0;

  __device__ __forceinline__ void load(bool any) {
    if (any) {
      const uint32_t to = ring + stage * place.bytes;
      load_activations(to);
      const int nb = strip * g.warps_n + wn, kb = step * g.warps_k + wk;
      if (nb < g.n_blocks && kb < g.k_blocks) load_block(to + place.x_bytes + warp * place.slot_bytes, nb, kb);
      if (++step == g.steps) step = 0, ++strip;
      if (++stage == g.stages) stage = 0;
    }
    cp_async_commit();
  }

 private:
  __device__ __forceinline__ void load_activations(uint32_t to) const {
    constexpr int kSlab = PackedStage<B, T>::kSlab;
    const int k0 = step * g.warps_k * kBlockK;
    for (int i = threadIdx.x; i < g.warps_k * 16 * 8 * T; i += blockDim.x) {
      const int chunk = i & 15, row = (i >> 4) & (8 * T - 1), slabs = (i >> 4) / (8 * T),
                column = k0 + slabs * 128 + chunk * 8;
      const bool inside = row < g.m && column < g.k;
      cp_async_16(to + (2 * slabs + (chunk >> 3)) * kSlab + row * 128 + (((chunk & 7) ^ (row & 7)) << 4),
                  g.x + (inside ? static_cast<long long>(row) * g.k + column : 0), inside ? 16 : 0);
    }
  }
  __device__ __forceinline__ void load_block(uint32_t slot, int nb, int kb) const {
    const unsigned char* from = g.weights + (static_cast<long long>(nb) * g.k_blocks + kb) * (512 * B);
    const int group = g.channel ? 0 : kb * g.groups_per_block;
    const int groups = min(g.groups_per_block, g.groups - group);
    const long long at = (static_cast<long long>(nb) * g.groups + group) * 32;
    const uint16_t* scales = g.scales + at;
    const unsigned char* zeros = g.zeros + at * g.zero_kind;
#pragma unroll
    for (int v = 0; v < B; ++v) cp_async_16(slot + v * 512 + lane * 16, from + v * 512 + lane * 16, 16);
    if (lane < 4 * groups)
      cp_async_16(slot + 512 * B + lane * 16, reinterpret_cast<const unsigned char*>(scales) + lane * 16, 16);
    if (lane < 2 * g.zero_kind * groups)
      cp_async_16(slot + 512 * B + place.scale_bytes + lane * 16, zeros + lane * 16, 16);
  }
};

}  // namespace lpq::cuda
