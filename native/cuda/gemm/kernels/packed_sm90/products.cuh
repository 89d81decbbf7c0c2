// What a warp of packed_sm90.cuh does with a stage: products of its packed block.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/packed_sm90/producer.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

constexpr int kMostStages = 16;
// Warps that multiply: 16 up to 32 tokens, 8 beyond; and four that feed them.
template <int T>
constexpr int kHopperThreads = (T <= 4 ? 512 : 256) + 128;

#if LPQ_HAS_WGMMA

// sum += of the packed block at `words` of the stage at `here`, whose activations a wgmma descriptor finds.
// wait_for_sums(): S lies at `ones`, [4 groups][8 T].
template <int B, int T, bool BF, class Cast, class Wait>
__device__ __forceinline__ void multiply_block(const GemmPackedArgs& g, const Cast& cast, float (&sum)[2][T][4],
                                               const TmaStage& place, uint32_t here, int wn, int wk, int kb,
                                               const float* ones, int lane, const Wait& wait_for_sums) {
  constexpr int kSlab = 8 * T * 128;
  const uint32_t words = here + place.weights_at + (wn * g.warps_k + wk) * 512 * B + lane * 16;
  uint32_t q[4 * B];
  float part[2][T][4];
  const uint64_t x0 = wgmma_descriptor(here + 2 * wk * kSlab);
  bool awaits_sums = Cast::kSums;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const bool begins = group_begins(g, c);
    load_ahead<B>(q, words, c);
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
      uint32_t a[2][4];
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[nt][i] = cast.pair(q + c * B, PackedChunk::pair(ks, nt, i));
      const uint64_t x = x0 + (c >> 1) * (kSlab >> 4) + (c & 1) * 4 + ks * 2;
      wgmma_fence();
      wgmma_k16<BF, T>(part[0], a[0], x, ks != 0 || !begins);
      wgmma_k16<BF, T>(part[1], a[1], x, ks != 0 || !begins);
      wgmma_commit();
      wgmma_wait<1>();  // the registers of the products before are free
    }
    const int group = group_of(g, c);
    if (group_ends(g, c)) {
      if (awaits_sums) wait_for_sums(), awaits_sums = false;
      wgmma_wait<0>();
      keep_sums(part);
      // A last block may hold fewer groups than others.
      if (g.channel || kb * g.groups_per_block + group < g.groups) {
        float scale[4], zero[4];
        const int at = wn * groups_of_step(g) + (g.channel ? 0 : wk * g.groups_per_block + group);
        group_factors(g, cast, here + place.scales_at + at * 64, here + place.zeros_at + at * 32 * g.zero_kind, lane,
                      scale, zero);
        add_group<T, Cast::kSums>(sum, part, scale, zero, ones + group * 8 * T, lane);
      }
    }
  }
}

#endif

}  // namespace lpq::cuda
