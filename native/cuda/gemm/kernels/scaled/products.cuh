// What a warp of scaled.cuh multiplies: words become pairs of scaled weights 32 of K ahead of the products.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/dequant_scaled.cuh"
#include "cuda/gemm/kernels/scaled/producer.cuh"
#include "cuda/gemm/kernels/scaled/rings.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A warp's products. Words come a chunk of 32 k ahead of the pairs, pairs a chunk ahead of the products.
template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
struct ScaledMultiplier {
  const GemmPackedArgs& g;
  const ScaledArgs& a;
  const ScaledCast<B, BF, Integer, Zeros>& cast;
  const TmaPipeline weights, activations;
  const uint32_t x_ring, words, scales, zeros;  // where this lane's are in the first stage
  const int stage_bytes, lane, chunks;          // chunks of a group
  ScaledWalk& walk;
  PipelineState at = {}, x_at = {};  // stage of packed blocks, slab of 64 k of activations
  int slab_before = 0, step = 0;
  float sum[P][T][4];
  uint32_t pairs[4][P][4], q[4 * B], scale_words[2][P], zero_words[2][P], scale[2 * P], rest[2 * P], high[2 * P],
      low[2 * P];

  // The steps of an item, or of as much of it as is this block's. Half: the first of the P 16-row halves (a constant,
  // since it decides where in a word codes lie).
  template <int Half>
  __device__ __forceinline__ void multiply_item() {
    if (step == 0) {
      mbarrier_wait_parity(weights.full, 0);
      fetch<Half>(0, 0);
      factors<Half>(0);
      make_pairs<Half>(0), make_pairs<Half>(1);
      fetch<Half>(0, 1);
    }
    bool begins = true, ends = false;
    while (!ends) {
      multiply_step<Half>(begins);
      begins = false;
      ++step;
      at.advance(g.stages);
      ends = walk.on();
    }
    wgmma_wait<0>();
    keep_sums(sum);
  }

 private:
  __device__ __forceinline__ void release_slab(int which) const { activations.consumer_release(which, lane); }
  // A packed block of K.
  template <int Half>
  __device__ __forceinline__ void multiply_step(bool begins) {
    const uint32_t from = at.stage * stage_bytes;
    const int next = at.stage + 1 == g.stages ? 0 : at.stage + 1;
    int first_slab = 0;
    uint64_t x0 = 0;
    const auto x = [&x0](uint32_t further) {
      return (x0 & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(x0) + further);
    };
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if ((c & 1) == 0) {
        activations.consumer_wait(x_at);
        x0 = wgmma_descriptor(x_ring + x_at.stage * (8 * T * 128));
      }
      wgmma_fence();
#pragma unroll
      for (int ks = 0; ks < 2; ++ks)
#pragma unroll
        for (int p = 0; p < P; ++p)
          wgmma_k16<BF, T>(sum[p], pairs[2 * (c & 1) + ks][p], x((c & 1) * 4 + ks * 2), c > 0 || ks > 0 || !begins);
      wgmma_commit();
      // The registers of the products of the chunk before are free, and at c = 0 and 2 the slab before, too.
      wgmma_wait<1>();
      if (c == 0 && step > 0) release_slab(slab_before);
      if (c == 2) {
        release_slab(first_slab);
        if (lane == 0) mbarrier_arrive(weights.empty + 8 * at.stage);  // the last words and scales came at c = 1
        if (step + 1 < walk.steps) mbarrier_wait_parity(weights.full + 8 * next, next == 0 ? at.parity ^ 1 : at.parity);
      }
      // After the last step what is fetched and made is never used.
      if (!(B == 1 && c == 2)) fetch<Half>(c < 2 ? from : next * stage_bytes, (c + 2) % 4);
      factors<Half>((c + 1) % 4);
      make_pairs<Half>((2 * c + 2) % 8), make_pairs<Half>((2 * c + 3) % 8);
      if (B == 1 && c == 2) fetch<Half>(next * stage_bytes, 0);  // one vector holds all chunks
      if (c & 1) {
        (c == 1 ? first_slab : slab_before) = x_at.stage;
        x_at.advance(a.slabs);
      }
    }
  }
  // The words of chunk c that no chunk before it needed, and its scales and zero points; `from`: the stage's bytes from
  // the ring's begin.
  template <int Half>
  __device__ __forceinline__ void fetch(uint32_t from, int c) {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (v >= (c * B + 3) / 4 && v < ((c + 1) * B + 3) / 4) load_vector<B>(q, words + from, v);
    if (c & (chunks - 1)) return;
    const int group = c * g.groups_per_block >> 2;
    if constexpr (P == 2) ld_shared_v2(scale_words[c & 1][0], scale_words[c & 1][1], scales + from + group * 64);
    else scale_words[c & 1][0] = ld_shared(scales + from + group * 64 + 4 * Half);
    if constexpr (Zeros) {
      if (g.zero_kind == 1) {
        zero_words[c & 1][0] = ld_shared(zeros + from + group * 32);
      } else if (g.zero_kind == 2) {
        if constexpr (P == 2) ld_shared_v2(zero_words[c & 1][0], zero_words[c & 1][1], zeros + from + group * 64);
        else zero_words[c & 1][0] = ld_shared(zeros + from + group * 64 + 4 * Half);
      }
    }
  }
  // What chunk c is multiplied by, and what is taken from it first; the i-th row class is 2 Half + i.
  template <int Half>
  __device__ __forceinline__ void factors(int c) {
    if (c & (chunks - 1)) return;
    const uint32_t (&halves)[P] = scale_words[c & 1];
    if (BF || g.scale_bf16) {
#pragma unroll
      for (int i = 0; i < 2 * P; ++i) {
        const uint16_t bits = static_cast<uint16_t>(halves[i >> 1] >> 16 * (i & 1));
        if constexpr (BF) {
          // A scale in f16 is the sum of two in bf16.
          const float s = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
          const uint16_t most = from_float<true>(s);
          scale[i] = twice(most), rest[i] = twice(from_float<true>(s - to_float(most, true)));
        } else {
          scale[i] = twice(from_float<false>(to_float(bits, true)));
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * P; ++i) scale[i] = i & 1 ? upper_twice(halves[i >> 1]) : lower_twice(halves[i >> 1]);
    }
    if constexpr (Zeros) {
#pragma unroll
      for (int i = 0; i < 2 * P; ++i) {
        float zero = a.zero;
        if (g.zero_kind == 1) zero = static_cast<float>((zero_words[c & 1][0] >> 8 * (2 * Half + i)) & 255);
        else if (g.zero_kind == 2)
          zero = to_float(static_cast<uint16_t>(zero_words[c & 1][i >> 1] >> 16 * (i & 1)), false);
        const uint16_t most = from_float<BF>(-zero);
        high[i] = twice(most);
        if constexpr (BF) low[i] = twice(from_float<true>(-zero - to_float(most, true)));
      }
    }
  }
  // The pairs of 16 of K, the j-th of a packed block, into set j & 3.
  template <int Half>
  __device__ __forceinline__ void make_pairs(int j) {
    const int c = j >> 1, ks = j & 1;
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int own = 2 * p + (i & 1);
        const uint32_t v = cast.value(q + c * B, PackedChunk::pair(ks, Half + p, i), Zeros ? high[own] : 0,
                                      Zeros && BF ? low[own] : 0);
        if constexpr (BF) pairs[j & 3][p][i] = fma_x2<true>(v, scale[own], mul_x2<true>(v, rest[own]));
        else pairs[j & 3][p][i] = mul_x2<false>(v, scale[own]);
      }
  }
};

// That of a warp with the packed block `slot` of a strip. `ring`, `x_ring`: where the stages of packed blocks and the
// slabs of activations begin; `place`: a stage.
template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ ScaledMultiplier<B, T, P, Zeros, BF, Integer> scaled_multiplier(
    const GemmPackedArgs& g, const ScaledArgs& a, const ScaledCast<B, BF, Integer, Zeros>& cast,
    const ScaledRings& rings, const TmaStage& place, uint32_t ring, uint32_t x_ring, int slot, int lane,
    uint32_t unknown, ScaledWalk& walk) {
  const int per_block = g.groups_per_block;  // groups
  return {g,
          a,
          cast,
          rings.weights,
          rings.activations,
          x_ring,
          (ring + slot * 512 * B + lane * 16) ^ unknown,
          (ring + place.scales_at + slot * per_block * 64 + (lane >> 2) * 8) ^ unknown,
          ring + place.zeros_at + slot * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind,
          place.bytes,
          lane,
          4 / per_block,
          walk};
}

#endif

}  // namespace lpq::cuda
