// What a warp of act8.cuh multiplies, 128 of k a step: into 32-bit sums that stay in the tensor core over all of K, or
// into sums of 128 of k that are scaled and added up in fp32.
#pragma once
#include <type_traits>

#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/kernels/act8/producer.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/logic.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Operand A of two products of 32 k, half `v` of a step, of a lane. Each source: load(stage, v) reads what half `v`
// needs of a stage, which lies so many bytes from the ring's begin; make(codes) makes s8 or e4m3 of it.
//
// Part: what the tensor core adds up; kPromote: 128 of k, which `scaled` adds to a sum in fp32, else all of K.
// kFactorBytes: of a group and row. kUnit: what sums are to be multiplied by besides. kTokenScales: tokens have a scale
// for each 128 of k.

// Weights of 8 bits: rows of 128 bytes, swizzled.
struct Int8Bytes {
  using Part = int;
  static constexpr bool kNibbles = false, kPromote = false, kTokenScales = false;
  static constexpr int kFactorBytes = 0;
  static constexpr float kUnit = 1;
  const uint32_t row;  // where this lane's row of ldmatrix is
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

// The same in e4m3. The tensor core keeps about 14 bits of a sum.
struct Fp8Bytes : Int8Bytes {
  using Part = float;
  static constexpr bool kPromote = true;
  using Int8Bytes::Int8Bytes;
  __device__ __forceinline__ void begin_step() {}
  __device__ __forceinline__ float scaled(float part, int, float, float sum) const { return sum + part; }
};

// Codes of 4 bits, two's complement, with one scale a row: as 16 times the code.
struct Int8Rows {
  using Part = int;
  static constexpr bool kNibbles = true, kPromote = false, kTokenScales = false;
  static constexpr int kFactorBytes = 0;
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

// The scales in f32 of a lane's two rows: those of the step that multiplies, and those that were loaded for the next.
struct GroupScales {
  const uint32_t at;
  float now[2], next[2];
  __device__ __forceinline__ GroupScales(uint32_t ring, int factors, int warp, int lane, uint32_t unknown)
      : at((ring + factors + (warp * 16 + (lane >> 2)) * 4) ^ unknown) {}
  __device__ __forceinline__ void load(uint32_t stage, float unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) next[i] = __uint_as_float(ld_shared(at + stage + 32 * i)) * unit;
  }
  __device__ __forceinline__ void begin_step() {
#pragma unroll
    for (int i = 0; i < 2; ++i) now[i] = next[i];
  }
};

// Codes of 4 bits with a scale in f32 a group of 128. Sums of 128 are exact and below 2^21.
struct Int8Scaled : Int8Rows {
  static constexpr bool kPromote = true;
  static constexpr int kFactorBytes = 4;
  GroupScales scales;
  __device__ __forceinline__ Int8Scaled(uint32_t ring, int factors, int warp, int lane, uint32_t unknown)
      : Int8Rows(ring, factors, warp, lane, unknown), scales(ring, factors, warp, lane, unknown) {}
  __device__ __forceinline__ void load(uint32_t stage, int v) {
    Int8Rows::load(stage, v);
    if (v == 0) scales.load(stage, kUnit);
  }
  __device__ __forceinline__ void begin_step() { scales.begin_step(); }
  // i: of the lane's two rows.
  __device__ __forceinline__ float scaled(int part, int i, float, float sum) const {
    return fmaf(static_cast<float>(part), scales.now[i], sum);
  }
};

// The same times e4m3, in which the codes are exact: as 2^-9 of the code, numbers from 0 to 8 being so many 2^-9 below
// the first binade and in it; bit 3 is the sign.
struct Fp8Scaled : Int8Scaled {
  using Part = float;
  static constexpr float kUnit = 512;
  using Int8Scaled::Int8Scaled;
  __device__ __forceinline__ void load(uint32_t stage, int v) {
    Int8Rows::load(stage, v);
    if (v == 0) scales.load(stage, kUnit);
  }
  __device__ __forceinline__ void make(uint32_t (&codes)[2][4]) const {
    constexpr uint32_t kEights = 0x08080808u, kCodes = 0x0f0f0f0fu, kSigns = 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i >> 1][i & 1] = __vabsdiffu4((words[i] & kCodes) ^ kEights, kEights) | (words[i] << 4 & kSigns);
      codes[i >> 1][(i & 1) + 2] = __vabsdiffu4((words[i] >> 4 & kCodes) ^ kEights, kEights) | (words[i] & kSigns);
    }
  }
  __device__ __forceinline__ float scaled(float part, int i, float, float sum) const {
    return fmaf(part, scales.now[i], sum);
  }
};

// Codes of 4 bits as Int8Scaled, times activations of which tokens have a scale for each 128 of k, too (W4Ax).
struct Int8Blocks : Int8Scaled {
  static constexpr bool kTokenScales = true;
  using Int8Scaled::Int8Scaled;
  __device__ __forceinline__ float scaled(int part, int i, float token, float sum) const {
    return fmaf(static_cast<float>(part), token * scales.now[i], sum);
  }
};

// Codes of 4 bits with a whole factor from -15 to 16 a group of 128: as factor times the code. A code + 8, times the
// factor, plus 128 - 8 factor, is 128 + code factor: from 0 to 248, so bytes of a word do not carry into each other.
// Its highest bit turned is the number in two's complement (Hu et al., LiquidGEMM, arXiv:2509.01229, section 5.1).
struct Int8Groups {
  using Part = int;
  static constexpr bool kNibbles = true, kPromote = false, kTokenScales = false;
  static constexpr int kFactorBytes = 1;
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
        factor[i] = ld_shared_s8(factors_at + stage + i * 8), offset[i] = signs - factor[i] * eights;
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

// Codes as Int8Groups, times activations of which tokens have a scale for each 128 of k (W4Ax): |sums| of 128 stay
// below 2^21, and the scale of the row is left to the end.
struct Int8GroupBlocks : Int8Groups {
  static constexpr bool kPromote = true, kTokenScales = true;
  using Int8Groups::Int8Groups;
  __device__ __forceinline__ void begin_step() {}
  __device__ __forceinline__ float scaled(int part, int, float token, float sum) const {
    return fmaf(static_cast<float>(part), token, sum);
  }
};

// A warp's products, 16 rows. Codes are made 64 of k ahead of the products, in two sets of registers by turns.
template <class Source, int T>
struct Act8Multiplier {
  using Part = typename Source::Part;
  using Sum = std::conditional_t<Source::kPromote, float, Part>;
  // Eights of tokens that are multiplied at once.
  static constexpr int kUnit = !Source::kPromote || T <= 16 ? T : T == 24 ? 12 : 8;
  const Act8Args& g;
  const ScaledArgs& a;
  const TmaPipeline weights, activations;
  const uint32_t x_ring, token_scales;  // the second: of this lane in the ring of scales of tokens
  const int stage_bytes, lane;
  ScaledWalk& walk;
  Source source;
  PipelineState at = {}, x_at = {};
  int slab_before = 0, step = 0;
  Sum sum[1][T][4];
  uint32_t codes[2][2][4];

  // The steps of an item, or of as much of it as is this block's.
  __device__ __forceinline__ void multiply_item() {
    if (step == 0) {
      weights.consumer_wait(at);
      source.load(0, 0);
      make(0);
      source.load(0, 1);
    }
    if constexpr (Source::kPromote) clear_sums(sum);
    bool begins = true, ends = false;
    while (!ends) {
      if constexpr (Source::kPromote) multiply_promoted();
      else multiply_step(begins);
      begins = false;
      ++step;
      slab_before = x_at.stage;
      x_at.advance(a.slabs), at.advance(g.stages);
      ends = walk.on();
    }
    if constexpr (Source::kPromote) return;
    wgmma_wait<0>();
    keep_sums(sum);
  }

 private:
  // The products of half a step.
  __device__ __forceinline__ void multiply_half(Part (&to)[kUnit][4], uint64_t x, int half, bool add) {
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) wgmma_k32<kUnit>(to, codes[half][ks], x + half * 4 + ks * 2, ks > 0 || add);
    wgmma_commit();
  }
  // The products have what was loaded of the stage: it is free, and the next is loaded from. After the last step what
  // is loaded and made is never used.
  __device__ __forceinline__ uint32_t next_stage() {
    const int next = at.stage + 1 == g.stages ? 0 : at.stage + 1;
    weights.consumer_release(at.stage, lane);
    if (step + 1 < walk.steps) mbarrier_wait_parity(weights.full + 8 * next, next == 0 ? at.parity ^ 1 : at.parity);
    return next * stage_bytes;
  }
  __device__ __forceinline__ void multiply_step(bool begins) {
    activations.consumer_wait(x_at);
    const uint64_t x = wgmma_descriptor(x_ring + x_at.stage * (8 * T * 128));
    multiply_half(sum[0], x, 0, !begins);
    wgmma_wait<1>();  // the registers of the products before are free
    if (step > 0) activations.consumer_release(slab_before, lane);
    make(1);
    multiply_half(sum[0], x, 1, true);
    const uint32_t next = next_stage();
    source.load(next, 0);
    wgmma_wait<1>();
    make(0);
    source.load(next, 1);
  }
  // Sums of 128 of k that are to be scaled have registers of their own: for more than 128 tokens, of a unit of them at
  // a time, all by the same codes.
  __device__ __forceinline__ void multiply_promoted() {
    activations.consumer_wait(x_at);
    const uint64_t x = wgmma_descriptor(x_ring + x_at.stage * (8 * T * 128));
    source.begin_step();
#pragma unroll
    for (int t0 = 0; t0 < T; t0 += kUnit) {
      Part part[1][kUnit][4];
      multiply_half(part[0], x + t0 * 64, 0, false);
      if (t0 == 0) make(1);
      multiply_half(part[0], x + t0 * 64, 1, true);
      if (t0 + kUnit == T) {
        const uint32_t next = next_stage();
        source.load(next, 0);
        wgmma_wait<1>();
        make(0);
        source.load(next, 1);
      }
      wgmma_wait<0>();
      if (!Source::kTokenScales && t0 + kUnit == T) activations.consumer_release(x_at.stage, lane);
      keep_sums(part);
#pragma unroll
      for (int t = 0; t < kUnit; ++t) {
        const uint2 token = Source::kTokenScales
                                ? ld_shared_v2(token_scales + x_at.stage * scaled_token_bytes(T) + 32 * (t0 + t))
                                : uint2{};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[0][t0 + t][i] =
              source.scaled(part[0][t][i], i >> 1, __uint_as_float(i & 1 ? token.y : token.x), sum[0][t0 + t][i]);
      }
    }
    if constexpr (Source::kTokenScales) activations.consumer_release(x_at.stage, lane);
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
