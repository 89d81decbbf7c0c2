// Activations of stream.cuh: to shared memory in the order of operand B, and their sums.
#pragma once
#include "cuda/gemm/activations.cuh"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/families/stream.h"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// The slice's activations to shared memory in the order of operand B, with their sums or what products start from. A
// warp takes 128 k of eight tokens at once, two such at a time; a lane eight k of one token in each chunk of 32, so
// that four lanes read whole sectors. constant: minus what is subtracted for each unit of S, of row class r.
template <int T, int TX, int W, bool BF, class Cast, bool Split, class Work>
struct StreamActivations {
  static constexpr int Q = Cast::kStarts;
  const GemmPackedArgs& g;
  const Work& work;
  unsigned char* const shared;
  const int lane;
  float constant[4];

  __device__ __forceinline__ StreamActivations(const GemmPackedArgs& g_, const Work& work_, unsigned char* shared_,
                                               int lane_)
      : g(g_), work(work_), shared(shared_), lane(lane_) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      constant[r] = 0;
      if constexpr (Cast::kSums) constant[r] = -fmaf(g.zero, Cast::gain(r), Cast::bias());
    }
  }
  __device__ __forceinline__ void stage(int warp) const {
    for (int pair = warp; pair < work.kbs * T; pair += 2 * W) {
      const int token = lane >> 2, j = lane & 3;
      uint4 x[2][4];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int item = pair + u * W, row = item % T * 8 + token, column = (work.k_first + item / T) * kBlockK + 8 * j;
        const uint16_t* from = g.x + static_cast<long long>(row) * g.k + column;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[u][c] = make_uint4(0, 0, 0, 0);
          if (item < work.kbs * T && row < g.m && column + 32 * c < g.k)
            x[u][c] = *reinterpret_cast<const uint4*>(from + 32 * c);
        }
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int item = pair + u * W;
        if (item >= work.kbs * T) break;
        store(x[u], item / T, item % T, token, j);
      }
    }
  }

 private:
  __device__ __forceinline__ void store(const uint4 (&x)[4], int kb, int tile, int token, int j) const {
    float eight[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t words[4] = {x[c].x, x[c].y, x[c].z, x[c].w};
      float two[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t word = words[t];
        if constexpr (ChunkCast<Cast>::kFarPairs && !Split) word = fma_bf16x2(word, kFar, twice(0x8000));
        if constexpr (Split)
          split_pair<true>(words[t], word,
                           *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, T + tile, TX, token, j, t)));
        *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, tile, TX, token, j, t)) = word;
        if constexpr (Cast::kSums) two[t] = sum_of_pair<BF>(words[t]);
      }
      if constexpr (Cast::kSums) eight[c] = (two[0] + two[1]) + (two[2] + two[3]);
    }
    if constexpr (Cast::kSums) store_sums(eight, kb, tile, token, j);
  }
  __device__ __forceinline__ void store_sums(float (&eight)[4], int kb, int tile, int token, int j) const {
    float* const sums = reinterpret_cast<float*>(shared + work.places.starts + kb * work.starts_step());
    const auto over_lanes = [&](float s) {
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      return s + __shfl_xor_sync(0xffffffffu, s, 2);
    };
    if (work.groups_per_block <= 2) eight[0] += eight[1], eight[1] = eight[2] + eight[3];
    if (work.groups_per_block == 1) eight[0] += eight[1];
#pragma unroll
    for (int group = 0; group < 4; ++group)
      if (group < work.groups_per_block) {
        const float s = over_lanes(eight[group]);
        if (!work.simple) {
          if (j == 0) sums[group * 8 * T + tile * 8 + token] = s;
        } else if (j < Q) {
          const int at = group * (16 * T * Q) + stream_start(tile, j, token, Q) / 4;
          sums[at] = (Q == 2 && j == 1 ? constant[2] : constant[0]) * s;
          sums[at + 2] = (Q == 2 && j == 1 ? constant[3] : constant[1]) * s;
        }
      }
  }
};

#endif

}  // namespace lpq::cuda
