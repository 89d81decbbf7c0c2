// What a warp of w4ax_few.cuh multiplies: weights under way in its registers, activations in shared memory.
#pragma once
#include "cuda/gemm/families/w4ax_few.h"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/w4ax_mma.cuh"
#include "cuda/host_device.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Which rows and blocks of k are a warp's.
struct FewShare {
  int first, last;  // tiles of 16 rows of the thread block
  int pass;         // of them that its warps go through together
  int group;        // of the warps that share K: which `at_once` of these are this warp's
  int part, turns;  // blocks of k of this warp: part + split turn
  __device__ __forceinline__ FewShare(const FewArgs& a, int warp)
      : first(begin_of(a, static_cast<int>(blockIdx.x))),
        last(begin_of(a, static_cast<int>(blockIdx.x) + 1)),
        pass(kFewWarps / a.split * a.at_once),
        group(warp / a.split),
        part(warp % a.split),
        turns((a.k_blocks - part + a.split - 1) / a.split) {}
  __device__ __forceinline__ static int begin_of(const FewArgs& a, int block) {
    return first_of_part(a.rows, block, gridDim.x);
  }
};

// R D tiles of weights under way in a warp's registers: the next turns of R tiles of rows.
template <int R, int D>
struct FewWeights {
  uint32_t words[D][R][8], scales[D][R][2];
  int row, turn = 0;  // that come next
  uint64_t policy;

  __device__ __forceinline__ FewWeights(const FewArgs& a, const FewShare& share)
      : row(share.first + share.group * a.at_once), policy(createpolicy_evict_first()) {}
  __device__ __forceinline__ void load(const FewArgs& a, const FewShare& share, int lane, int d, int r) {
    const int own = row + r, kb = share.part + a.split * turn, n = FragmentC<float>::row(lane);
    const bool wanted = r < a.at_once && own < share.last && kb < a.k_blocks;
    const unsigned char* const from = a.w + (static_cast<long long>(own) * a.k_blocks + kb) * 1024 + lane * 16;
    ld_global_nc_v4_if(words[d][r], from, policy, wanted);
    ld_global_nc_v4_if(words[d][r] + 4, from + 512, policy, wanted);
    const float* const scale = a.w_scales + static_cast<long long>(kb) * a.w_pitch + 16 * own + n;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scales[d][r][i] =
          ld_global_nc(wanted && 16 * own + n + 8 * i < a.w_pitch ? scale + 8 * i : a.w_scales);  // else anything
  }
  __device__ __forceinline__ void advance(const FewShare& share) {
    if (++turn < share.turns) return;
    turn = 0, row += share.pass;
  }
  __device__ __forceinline__ void begin(const FewArgs& a, const FewShare& share, int lane) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int r = 0; r < R; ++r) load(a, share, lane, d, r);
      advance(share);
    }
  }
};

// Codes and scales of the block `kb` of k to a warp's slot; tokens beyond the last are 0.
template <int T>
__device__ __forceinline__ void few_fetch(const FewArgs& a, int kb, int place, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (place >= 0) {
#pragma unroll
    for (int i = 0; i < 2 * T; ++i) {
      const int row = (lane + 32 * i) / 8, chunk = lane % 8;
      const signed char* const from = a.x8 + static_cast<long long>(row) * 128 * a.eights + place * 128 + chunk * 16;
      cp_async_16(to + place_of_8bit(row, chunk), row < a.m ? from : a.x8, row < a.m ? 16 : 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < T; ++i) {
      const int row = (lane + 32 * i) / 4, chunk = lane % 4;
      const unsigned char* const from = a.x4 + static_cast<long long>(row) * 64 * a.fours + ~place * 64 + chunk * 16;
      cp_async_16(to + place_of_4bit(row, chunk), row < a.m ? from : a.x4, row < a.m ? 16 : 0);
    }
  }
  if (lane < 2 * T) {
    const bool there = 4 * lane < a.x_pitch;
    const float* const from = a.x_scales + static_cast<long long>(kb) * a.x_pitch + 4 * lane;
    cp_async_16(to + 1024 * T + 16 * lane, there ? from : a.x_scales, there ? 16 : 0);
  }
}

// Activations of a block of 128 of k as operand B of its four products; of 4 bits as 16 times the code.
template <int T>
struct FewTokens {
  float power;  // of the products, that makes them those of the codes
  FragmentB<8> b[T][4];
  float scale[T][2];

  __device__ __forceinline__ FewTokens(uint32_t slot, bool four_bits, int lane)
      : power(four_bits ? 0.00390625f : 0.0625f) {
    const int matrix = Matrix8x8::addressed(lane);
#pragma unroll
    for (int i = 0; i < T; ++i) {
      const int token = 8 * i + Matrix8x8::addressed_row(lane);
      uint32_t four[4];
      if (!four_bits) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          ldmatrix_x4(four, slot + place_of_8bit(token, 4 * v + matrix));
#pragma unroll
          for (int j = 0; j < 4; ++j) b[i][2 * v + j / 2][j % 2] = four[j];
        }
      } else {
        ldmatrix_x4(four, slot + place_of_4bit(token, matrix));
#pragma unroll
        for (int j = 0; j < 4; ++j) b[i][j][0] = four[j] << 4 & kHighNibbles, b[i][j][1] = four[j] & kHighNibbles;
      }
      const uint2 pair = ld_shared_v2(slot + 1024 * T + 4 * (8 * i + FragmentC<float>::column(lane)));
      scale[i][0] = __uint_as_float(pair.x), scale[i][1] = __uint_as_float(pair.y);
    }
  }
};

#endif

}  // namespace lpq::cuda
