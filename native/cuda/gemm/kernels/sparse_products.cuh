// What a warp of sparse.cuh does with a stage: 64 columns by 128 k by mma.sp, added to its sums.
#pragma once
#include "cuda/gemm/families/sparse.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/sparse_producer.cuh"
#include "cuda/gemm/kernels/unsigned_codes.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// Where a lane finds its own in shared memory; codes and metadata of the four 32 k so many bytes apart. x: its row for
// ldmatrix.
struct SparseOperands {
  uint32_t codes, metadata, scales, x;
  int codes_apart, metadata_apart;

  template <int Bits, int T>
  __device__ __forceinline__ void fetch(uint32_t (&words)[Bits], uint32_t (&places)[2], FragmentB<16, 4> (&tokens)[T],
                                        int s, int lane) const {
#pragma unroll
    for (int v = 0; v < Bits / 4; ++v) ld_shared_v4(words + 4 * v, codes + s * codes_apart + 16 * v);
#pragma unroll
    for (int i = 0; i < 2; ++i) places[i] = ld_shared(metadata + s * metadata_apart + 128 * i);
    const int chunk = (s & 1) * 4 + Matrix8x8::addressed(lane), row = Matrix8x8::addressed_row(lane);
#pragma unroll
    for (int t = 0; t < T; ++t)
      ldmatrix_x4(tokens[t], x + (s >> 1) * SparseTile<Bits, T>::kSlab + t * 1024 + ((chunk ^ row) << 4));
  }
};

// Product j of a warp's four: metadata of two lie in one register, in the lanes that the selector names.
template <bool BF, class Sums>
__device__ __forceinline__ void multiply_kept(Sums& c, const FragmentA<16>& a, const FragmentB<16, 4>& x,
                                              const uint32_t (&places)[2], int j) {
  if (j & 1) mma_sp_m16n8k32<BF, 1>(c, a, x, places[j >> 1]);
  else mma_sp_m16n8k32<BF, 0>(c, a, x, places[j >> 1]);
}

// Scales go into the weights (kRounded), or into the sums: once a group (kTogether), or for each product.
template <int Bits, int T, bool BF>
__device__ __forceinline__ void multiply_step(const SparseArgs& g, const SparseOperands& from, int lane,
                                              float (&sum)[4][T][4]) {
  constexpr bool kRounded = T == 8 && !BF, kTogether = T <= 4;
  // Of column 8 (lane / 4) + 4 i + j: half i of register j.
  uint4 raw = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};  // ones: the scales come at the end
  if (!g.channel) raw = ld_shared_v4(from.scales);
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  FragmentC<float> part[kTogether ? 4 : 1][kTogether ? T : 1] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t words[Bits], places[2];
    FragmentB<16, 4> x[T];
    from.fetch<Bits, T>(words, places, x, s, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      FragmentA<16> a;
      less_zero<Bits, BF, true>(a, words + j * (Bits / 4), Offsets<Bits, BF>(both(1u << (Bits - 1))), g.magic);
      if constexpr (kRounded) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = mul_x2<false>(a[i], __byte_perm(pairs[j], 0, i & 1 ? 0x3232 : 0x1010));
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
        if constexpr (kTogether) multiply_kept<BF>(part[j][t], a, x[t], places, j);
        else if constexpr (kRounded) multiply_kept<BF>(sum[j][t], a, x[t], places, j);
        else {
          FragmentC<float> one = {};
          multiply_kept<BF>(one, a, x[t], places, j);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            sum[j][t][i] = fmaf(to_float(pairs[j] >> 16 * (i >> 1) & 0xffffu, false), one[i], sum[j][t][i]);
        }
      }
    }
  }
  if constexpr (kTogether) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float scale[2] = {to_float(pairs[j] & 0xffffu, false), to_float(pairs[j] >> 16, false)};
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][t][i] = fmaf(scale[i >> 1], part[j][t][i], sum[j][t][i]);
    }
  }
}

}  // namespace lpq::cuda
