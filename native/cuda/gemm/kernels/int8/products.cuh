// What a warp of int8.cuh multiplies: 128 of k a step, into 32-bit sums that stay in the tensor core over all of K.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/kernels/int8/producer.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/logic.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Operand A of two products of 32 k, half `v` of a step, of a lane. Each source: load(stage, v) reads what half `v`
// needs of a stage, which lies so many bytes from the ring's begin; make(codes) makes s8 of it.

// Weights of 8 bits: rows of 128 bytes, swizzled.
struct Int8Bytes {
  static constexpr bool kNibbles = false, kFactors = false;
  static constexpr float kUnit = 1;  // what a sum is to be multiplied by besides
  const uint32_t row;                // where this lane's row of ldmatrix is
  uint32_t from;

  __device__ __forceinline__ Int8Bytes(uint32_t ring, int, int warp, int lane, uint32_t unknown)
      : row((ring + (warp * 16 + (lane & 15)) * 128 + ((lane >> 4 ^ (lane & 7)) << 4)) ^ unknown) {}
  __device__ __forceinline__ void load(uint32_t stage, int v) { from = (row + stage) ^ v << 6; }
  // Only here, when the registers are free.
  __device__ __forceinline__ void make(uint32_t (&codes)[2][4]) const {
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) ldmatrix_x4(codes[ks], from ^ ks << 5);
  }
};

// Codes of 4 bits with one scale a row: as 16 times the code.
struct Int8Rows {
  static constexpr bool kNibbles = true, kFactors = false;
  static constexpr float kUnit = 0.0625f;
  const uint32_t at;  // where this lane's first words are
  uint32_t words[4];

  __device__ __forceinline__ Int8Rows(uint32_t ring, int, int warp, int lane, uint32_t unknown)
      : at((ring + warp * 1024 + lane * 16) ^ unknown) {}
  __device__ __forceinline__ void load(uint32_t stage, int v) { ld_shared_v4(words, at + stage + v * 512); }
  // Of a word i codes are rows lane / 4 + 8 (i % 2), of product i / 2.
  __device__ __forceinline__ void make(uint32_t (&codes)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i >> 1][i & 1] = words[i] << 4 & 0xf0f0f0f0u;
      codes[i >> 1][(i & 1) + 2] = words[i] & 0xf0f0f0f0u;
    }
  }
};

// Codes of 4 bits with a whole factor from 1 to 16 a group of 128: as factor times the code. A code + 8, times the
// factor, plus 128 - 8 factor, is 128 + code factor: from 0 to 240, so bytes of a word do not carry into each other.
// Its highest bit turned is the number in two's complement (Hu et al., LiquidGEMM, arXiv:2509.01229, section 5.1).
struct Int8Groups {
  static constexpr bool kNibbles = true, kFactors = true;
  static constexpr float kUnit = 1;
  const uint32_t at, factors_at;        // words and factors of this lane
  const uint32_t masks, eights, signs;  // constants that the compiler must not know: an LOP3 takes one
  uint32_t words[4], factor[2], offset[2];

  __device__ __forceinline__ Int8Groups(uint32_t ring, int factors, int warp, int lane, uint32_t unknown)
      : at((ring + warp * 1024 + lane * 16) ^ unknown),
        factors_at((ring + factors + warp * 16 + (lane >> 2)) ^ unknown),
        masks(0x0f0f0f0fu ^ unknown),
        eights(0x08080808u ^ unknown),
        signs(0x80808080u ^ unknown) {}
  __device__ __forceinline__ void load(uint32_t stage, int v) {
    ld_shared_v4(words, at + stage + v * 512);
    if (v == 0)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        factor[i] = ld_shared_u8(factors_at + stage + i * 8), offset[i] = signs - factor[i] * eights;
  }
  __device__ __forceinline__ void make(uint32_t (&codes)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int high = 0; high < 2; ++high)
        codes[i >> 1][(i & 1) + 2 * high] =
            (and_xor(words[i] >> 4 * high, masks, eights) * factor[i & 1] + offset[i & 1]) ^ signs;
  }
};

// A warp's products, 16 rows. Codes are made 64 of k ahead of the products, in two sets of registers by turns.
template <class Source, int T>
struct Int8Multiplier {
  const Int8Args& g;
  const ScaledArgs& a;
  const TmaPipeline weights, activations;
  const uint32_t x_ring;
  const int stage_bytes, lane;
  ScaledWalk& walk;
  Source source;
  PipelineState at = {}, x_at = {};
  int slab_before = 0, step = 0;
  int sum[1][T][4];
  uint32_t codes[2][2][4];

  // The steps of an item, or of as much of it as is this block's.
  __device__ __forceinline__ void multiply_item() {
    if (step == 0) {
      weights.consumer_wait(at);
      source.load(0, 0);
      make(0);
      source.load(0, 1);
    }
    bool begins = true, ends = false;
    while (!ends) {
      multiply_step(begins);
      begins = false;
      ++step;
      slab_before = x_at.stage;
      x_at.advance(a.slabs), at.advance(g.stages);
      ends = walk.on();
    }
    wgmma_wait<0>();
    keep_sums(sum);
  }

 private:
  __device__ __forceinline__ void multiply_step(bool begins) {
    const int next = at.stage + 1 == g.stages ? 0 : at.stage + 1;
    activations.consumer_wait(x_at);
    const uint64_t x = wgmma_descriptor(x_ring + x_at.stage * (8 * T * 128));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      wgmma_fence();
#pragma unroll
      for (int ks = 0; ks < 2; ++ks)
        wgmma_k32<T>(sum[0], codes[half][ks], x + half * 4 + ks * 2, half > 0 || ks > 0 || !begins);
      wgmma_commit();
      if (half == 1) {
        weights.consumer_release(at.stage, lane);  // the products have what was loaded of it
        // After the last step what is loaded and made is never used.
        if (step + 1 < walk.steps) mbarrier_wait_parity(weights.full + 8 * next, next == 0 ? at.parity ^ 1 : at.parity);
        source.load(next * stage_bytes, 0);
      }
      // The registers of the products before are free.
      wgmma_wait<1>();
      if (half == 0 && step > 0) activations.consumer_release(slab_before, lane);
      make(half ^ 1);
      if (half == 1) source.load(next * stage_bytes, 1);
    }
  }
  __device__ __forceinline__ void make(int set) {
    source.make(codes[set]);
    // Else the compiler makes some of them between products, which wait for it.
#pragma unroll
    for (int i = 0; i < 8; ++i) keep_here(codes[set][i >> 2][i & 3]);
  }
};

#endif

}  // namespace lpq::cuda
