// What a warp of wide.cuh multiplies: packed blocks, from the stage to its sums.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/gemm/tma_stage.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

constexpr int kWideStages = 16;  // at most
// Warps that multiply, packed blocks that each has, and 16-row halves of a block that multiply at once.
template <int T>
constexpr int kWideWarps = T <= 4 ? 16 : 8;
template <int T>
constexpr int kWideBlocks = T == 8 ? 2 : 1;
template <int T>
constexpr int kWideHalves = T <= 4 ? 2 : 1;
template <int T>
constexpr int kWideThreads = 32 * kWideWarps<T> + 128;

#if LPQ_HAS_WGMMA

// The words of chunk `c` of a lane. `words`: where the lane's vectors of the block begin.
template <int B>
__device__ __forceinline__ void load_chunk(uint32_t (&q)[B], uint32_t words, int c) {
  const auto at = [&](int w) { return words + ((c * B + w) >> 2) * 512 + ((c * B + w) & 3) * 4; };
  if constexpr (B % 4 == 0) {
#pragma unroll
    for (int v = 0; v < B; v += 4) ld_shared_v4(q + v, at(v));
  } else if constexpr (B % 2 == 0) {
#pragma unroll
    for (int v = 0; v < B; v += 2) ld_shared_v2(q[v], q[v + 1], at(v));
  } else {
#pragma unroll
    for (int v = 0; v < B; ++v) q[v] = ld_shared(at(v));
  }
}

// Products of packed blocks, P 16-row halves of one at once: those from `pass` on.
// One: one group a packed block (or one scale a row), and zero points that leave in the pairs; else anything.
template <int B, int T, bool One, bool BF, class Cast>
struct WideMultiplier {
  static constexpr int P = kWideHalves<T>;
  const GemmPackedArgs& g;
  const WideArgs& a;
  const int lane;
  const Cast& cast;
  const bool sums;       // zero points leave through the sums of activations
  uint32_t (&minus)[4];  // what is added to the pairs of row class r

  // The rows of `pass` of the block whose lane's words, scales and zero points lie there, times activations at
  // descriptor x0.
  __device__ __forceinline__ void multiply(float (&sum)[2][T][4], int pass, uint32_t words, uint32_t scales,
                                           uint32_t zeros, uint64_t x0, int item, int kb) {
    const int per_block = One ? 1 : g.groups_per_block;
    float part[P][T][4];
    if constexpr (One) {
      begin_group(pass, zeros);
      uint32_t q[4 * B];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        load_ahead<B>(q, words, c);
        multiply_chunk(part, pass, q + c * B, x0, c, c == 0);
      }
      end_group(sum, part, pass, scales, zeros, item, kb);
    } else {
      const int chunks = 4 / per_block;  // of a group
#pragma unroll 1
      for (int c = 0, group = 0; c < 4; ++c) {
        uint32_t q[B];
        load_chunk<B>(q, words, c);
        const bool begins = (c & (chunks - 1)) == 0;
        if (begins) begin_group(pass, zeros + group * 32);
        multiply_chunk(part, pass, q, x0, c, begins);
        wgmma_wait<0>();  // products do not reach around a loop
        if (((c + 1) & (chunks - 1)) == 0) {
          end_group(sum, part, pass, scales + group * 64, zeros + group * 32 * g.zero_kind, item,
                    kb * per_block + group);
          ++group;
        }
      }
    }
  }

 private:
  // What chunk c does once its words are there.
  __device__ __forceinline__ void multiply_chunk(float (&part)[P][T][4], int pass, const uint32_t* q, uint64_t x0,
                                                 int c, bool begins) const {
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
      uint32_t w[P][4];
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[p][i] = cast.pair(q, PackedChunk::pair(ks, pass + p, i));
          if constexpr (Cast::kSums) w[p][i] = add_x2<BF>(w[p][i], minus[2 * (pass + p) + (i & 1)]);
        }
      const uint64_t x = x0 + (c >> 1) * (8 * T * 128 >> 4) + (c & 1) * 4 + ks * 2;
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < P; ++p) wgmma_k16<BF, T>(part[p], w[p], x, ks != 0 || !begins);
      wgmma_commit();
      wgmma_wait<1>();  // the registers of the products before are free
    }
  }
  // Zero points of a group, before its first chunk.
  __device__ __forceinline__ void begin_group(int pass, uint32_t zeros) {
    if constexpr (Cast::kSums) {
      if (a.zero_mode == kZeroOfGroups) {
        const uint32_t bytes = ld_shared(zeros);
#pragma unroll
        for (int r = 2 * pass; r < 2 * pass + 2 * P; ++r)
          minus[r] = twice(
              from_float<BF>(-fmaf(g.zero + static_cast<float>((bytes >> 8 * r) & 255), Cast::gain(r), Cast::bias())));
      }
    }
  }
  // Of groups that a last block lacks, products and scales are 0. `group`: of K.
  __device__ __forceinline__ void end_group(float (&sum)[2][T][4], float (&part)[P][T][4], int pass, uint32_t scales,
                                            uint32_t zeros, int item, int group) const {
    float scale[4];
    row_numbers(ld_shared_v2(scales), g.scale_bf16, scale);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if constexpr (Cast::kSums) scale[r] *= Cast::ungain(r);
      else scale[r] *= cast.unpower;
    }
    wgmma_wait<0>();
    keep_sums(part);
    if constexpr (Cast::kSums && !One) {
      if (sums) take_zeros_off(part, pass, zeros, item, group);
    }
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[pass + p][t][i] = fmaf(scale[2 * (pass + p) + (i >> 1)], part[p][t][i], sum[pass + p][t][i]);
  }
  // part -= zero' S.
  __device__ __forceinline__ void take_zeros_off(float (&part)[P][T][4], int pass, uint32_t zeros, int item,
                                                 int group) const {
    float zero[4];
    row_zeros(g, zeros, zeros, zero);
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] *= -Cast::gain(r);
    const long long row = static_cast<long long>(group) * a.sums_pitch + item % a.token_tiles * 8 * T;
    const float2* const ones = reinterpret_cast<const float2*>(a.sums + row) + (lane & 3);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const float2 s = __ldg(ones + 4 * t);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          part[p][t][i] = fmaf(zero[2 * (pass + p) + (i >> 1)], i & 1 ? s.y : s.x, part[p][t][i]);
    }
  }
};

// What is added to the pairs of row class r where zero points leave in them.
template <bool BF, class Cast>
__device__ __forceinline__ void wide_offsets(float zero, uint32_t (&minus)[4]) {
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r) minus[r] = twice(from_float<BF>(-fmaf(zero, Cast::gain(r), Cast::bias())));
  }
}

// A warp's packed blocks of the stage at `stage`, all of their rows.
template <int B, int T, bool One, bool BF, class Cast>
__device__ __forceinline__ void multiply_stage(WideMultiplier<B, T, One, BF, Cast>& multiplier,
                                               float (&sum)[kWideBlocks<T>][2][T][4], const GemmPackedArgs& g,
                                               const WideArgs& a, const TmaStage& place, uint32_t stage, int warp,
                                               int warps, int lane, int per_block, int item, int kb) {
  const uint64_t x0 = wgmma_descriptor(stage);
#pragma unroll
  for (int h = 0; h < kWideBlocks<T>; ++h) {
    // A warpgroup multiplies together, whether all of its rows exist or not.
    const int slot = warp + h * warps, own = min(slot, a.width - 1);
    if (h > 0 && (slot & ~3) >= a.width) continue;
    // Places are arguments of each pass: as variables of the loop around they cost 45 spills of int3 and 128 tokens.
#pragma unroll
    for (int pass = 0; pass < 2 / kWideHalves<T>; ++pass)
      multiplier.multiply(sum[h], pass, stage + place.weights_at + own * 512 * B + lane * 16,
                          stage + place.scales_at + own * per_block * 64 + (lane >> 2) * 8,
                          stage + place.zeros_at + own * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind,
                          x0, item, kb);
  }
}

#endif

}  // namespace lpq::cuda
