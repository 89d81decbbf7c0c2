// W4Ax of up to 16 tokens on Hopper: what w4ax_mixed.cuh multiplies, from the same bytes (its header has their order),
// at the speed at which weights come. mma.m16n8k32.s8 for blocks of both precisions: m16n8k64.s4 is emulated there, and
// wgmma would multiply 64 rows for the time that two of these take.
//
// A block, one a multiprocessor, has an equal run of tiles of 16 rows. Of its 16 warps S share K, the part p of them
// taking blocks p, p + S, ... of 128 of k, and each S have up to R tiles of rows of their own; S is as large as lets
// all rows be gone through in one pass. A warp is alone until the
// end of a pass: R D tiles of words are under way in its registers (evict-first), each replaced as soon as it has
// become codes. Activations come to shared memory by cp.async, all at the beginning, or where they do not fit two
// blocks of k a warp, S = 16. Nibbles become 16 times the code, of activations once a block of k, of weights once a
// tile (one LOP3, and a shift for the low ones).
//
//   words: (lane, word i of vector v) -> n = lane / 4 + 8 (i % 2), k = 32 (2 v + i / 2) + 4 (lane % 4) + byte, + 16 in
//   the high nibbles codes of activations in shared memory: (token, chunk of 16 bytes) -> byte 128 token + ((chunk ^
//   token % 8) << 4), of 4 bits 64 token + ((chunk ^ token / 2 % 4) << 4)
//
// Sums of a block of k are exact and go into fp32 by one fma, as on the CPU; but y is the sum over parts, in their
// order, of sums over their blocks of k in order.
#pragma once
#include "cuda/gemm/families/w4ax_few.h"
#include "cuda/gemm/kernels/w4ax_store.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Codes and scales of the block `kb` of k to a warp's slot; tokens beyond the last are 0.
template <int T>
__device__ __forceinline__ void few_fetch(const FewArgs& a, int kb, int place, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (place >= 0) {
#pragma unroll
    for (int i = 0; i < 2 * T; ++i) {
      const int row = (lane + 32 * i) / 8, chunk = lane % 8;
      const signed char* const from = a.x8 + static_cast<long long>(row) * 128 * a.eights + place * 128 + chunk * 16;
      cp_async_16(to + row * 128 + ((chunk ^ (row & 7)) << 4), row < a.m ? from : a.x8, row < a.m ? 16 : 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < T; ++i) {
      const int row = (lane + 32 * i) / 4, chunk = lane % 4;
      const unsigned char* const from = a.x4 + static_cast<long long>(row) * 64 * a.fours + ~place * 64 + chunk * 16;
      cp_async_16(to + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4), row < a.m ? from : a.x4, row < a.m ? 16 : 0);
    }
  }
  if (lane < 2 * T) {
    const bool there = 4 * lane < a.x_pitch;
    const float* const from = a.x_scales + static_cast<long long>(kb) * a.x_pitch + 4 * lane;
    cp_async_16(to + 1024 * T + 16 * lane, there ? from : a.x_scales, there ? 16 : 0);
  }
}

// T tiles of 8 tokens; R tiles of 16 rows, D blocks of k of each in registers.
template <int T, int R, int D>
__device__ __forceinline__ void gemm_few(const FewArgs& a) {
  constexpr uint32_t kHigh = 0xf0f0f0f0u;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3,
            matrix = lane >> 3;
  const int unit = static_cast<int>(blockIdx.x), units = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(static_cast<long long>(unit) * a.rows / units),
            last = static_cast<int>((unit + 1ll) * a.rows / units);
  const int group = warp / a.split, part_of_k = warp % a.split,
            turns = (a.k_blocks - part_of_k + a.split - 1) / a.split;  // blocks of k of this warp
  const int pass = kFewWarps / a.split * a.at_once;                    // rows of a pass
  unsigned char* const shared = dynamic_shared();
  int* const places = reinterpret_cast<int*>(shared);
  float4* const sums = reinterpret_cast<float4*>(shared + (a.k_blocks + 3) / 4 * 16);
  const uint32_t ring = shared_address(sums) +
                        static_cast<uint32_t>(few_sums_bytes(T, R) + (a.resident ? 0 : warp * 2 * few_slot_bytes(T)));

  // The words that come next: of the turn `ahead_turn` of rows from `ahead_row` on, to the first of R places.
  uint32_t words[D][R][8], scales[D][R][2];
  int ahead_row = first + group * a.at_once, ahead_turn = 0;
  const uint64_t policy = createpolicy_evict_first();
  const auto load = [&](int d, int r) {
    const int row = ahead_row + r, kb = part_of_k + a.split * ahead_turn;
    const bool wanted = r < a.at_once && row < last && kb < a.k_blocks;
    const unsigned char* const from = a.w + (static_cast<long long>(row) * a.k_blocks + kb) * 1024 + lane * 16;
    ld_global_nc_v4_if(words[d][r], from, policy, wanted);
    ld_global_nc_v4_if(words[d][r] + 4, from + 512, policy, wanted);
    const float* const scale = a.w_scales + static_cast<long long>(kb) * a.w_pitch + 16 * row + g;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scales[d][r][i] = ld_global_nc(
          wanted && 16 * row + g + 8 * i < a.w_pitch ? scale + 8 * i : a.w_scales);  // of rows that are none anything
  };
  const auto advance = [&] {
    if (++ahead_turn < turns) return;
    ahead_turn = 0, ahead_row += pass;
  };
  const auto begin = [&] {
#pragma unroll
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int r = 0; r < R; ++r) load(d, r);
      advance();
    }
  };
  if (!a.overlap) griddepcontrol_wait_and_launch();
  for (int i = thread; i < a.k_blocks; i += 32 * kFewWarps) places[i] = a.blocks[i];
  begin();
  if (a.overlap) griddepcontrol_wait_and_launch();
  __syncthreads();
  const auto fetch = [&](int kb, int slot) {
    few_fetch<T>(a, kb, places[kb], ring + static_cast<uint32_t>(slot * few_slot_bytes(T)));
  };
  if (a.resident) {
    for (int kb = warp; kb < a.k_blocks; kb += kFewWarps) fetch(kb, kb);
    cp_async_commit();
    cp_async_wait<0>();
    if (a.split == kFewWarps) __syncwarp();  // a warp's own blocks of k
    else __syncthreads();
  } else if (turns > 0) {
    fetch(part_of_k, 0);
    cp_async_commit();
  }

  int coming = 0, parity = 0, set = 0;  // the turn whose activations were fetched last, and its slot, where they are
                                        // not resident; the set of words
  for (int base = first; base < last; base += pass) {
    const int row0 = base + group * a.at_once, count = min(a.at_once, last - row0);
    float sum[R][T][4] = {};
    const auto step = [&](int d, int turn) {
      const int kb = part_of_k + a.split * turn, place = places[kb];
      const uint32_t slot = ring + static_cast<uint32_t>((a.resident ? kb : parity) * few_slot_bytes(T));
      uint32_t b[T][8];
      float token_scale[T][2];
      const float power = place >= 0 ? 0.0625f : 0.00390625f;
#pragma unroll
      for (int i = 0; i < T; ++i) {
        const int token = 8 * i + (lane & 7);
        uint32_t four[4];
        if (place >= 0) {
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            ldmatrix_x4(four, slot + token * 128 + (((4 * v + matrix) ^ (token & 7)) << 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) b[i][4 * v + j] = four[j];
          }
        } else {
          ldmatrix_x4(four, slot + token * 64 + ((matrix ^ (token >> 1 & 3)) << 4));
#pragma unroll
          for (int j = 0; j < 4; ++j) b[i][2 * j] = four[j] << 4 & kHigh, b[i][2 * j + 1] = four[j] & kHigh;
        }
        const uint2 pair = ld_shared_v2(slot + 1024 * T + 4 * (8 * i + 2 * t));
        token_scale[i][0] = __uint_as_float(pair.x), token_scale[i][1] = __uint_as_float(pair.y);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (r < count) {
          int part[T][4] = {};
#pragma unroll
          for (int chunk = 0; chunk < 4; ++chunk) {
            const uint32_t low = words[d][r][2 * chunk], high = words[d][r][2 * chunk + 1];
            const uint32_t wide[4] = {low << 4 & kHigh, high << 4 & kHigh, low & kHigh, high & kHigh};
#pragma unroll
            for (int i = 0; i < T; ++i) mma_m16n8k32_s8(part[i], wide, b[i][2 * chunk], b[i][2 * chunk + 1]);
          }
          const float row_scale[2] = {__uint_as_float(scales[d][r][0]) * power,
                                      __uint_as_float(scales[d][r][1]) * power};
          load(d, r);
#pragma unroll
          for (int i = 0; i < T; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
              sum[r][i][j] =
                  fmaf(static_cast<float>(part[i][j]), token_scale[i][j & 1] * row_scale[j >> 1], sum[r][i][j]);
        } else {
          load(d, r);
        }
      }
      advance();
    };
    for (int turn = 0; turn < turns && (count > 0 || !a.resident); ++turn) {
      if (!a.resident) {
        // The next block of k, of the next rows where these end. Its slot has been read a turn ago.
        coming = coming + 1 < turns ? coming + 1 : 0;
        fetch(part_of_k + a.split * coming, parity ^ 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncwarp();
      }
      if (D == 1 || set == 0) step(0, turn);
      else step(D - 1, turn);
      set = D == 1 ? 0 : set ^ 1;
      parity ^= 1;
      if (!a.resident) __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < T; ++i)
        sums[((warp * R + r) * T + i) * 32 + lane] =
            make_float4(sum[r][i][0], sum[r][i][1], sum[r][i][2], sum[r][i][3]);
    __syncthreads();
    for (int i = thread; i < min(pass, last - base) * T * 32; i += 32 * kFewWarps) {
      const int row = i / (32 * T), owner = row / a.at_once;
      const float4* const from = sums + (owner * a.split * R + row - owner * a.at_once) * T * 32 + i % (32 * T);
      float all[4] = {};
#pragma unroll 4
      for (int w = 0; w < a.split; ++w) {
        const float4 four = from[w * R * T * 32];
        all[0] += four.x, all[1] += four.y, all[2] += four.z, all[3] += four.w;
      }
      store_four(a, (base + row) * 16, i / 32 % T * 8, all, i % 32);
    }
    __syncthreads();  // before the next rows' sums
  }
  cp_async_wait<0>();
}

#endif

}  // namespace lpq::cuda

#define LPQ_GEMM_FEW(tiles, rows, deep)                                               \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kFewWarps, 1)          \
      lpq_gemm_few_t##tiles##_r##rows(const __grid_constant__ lpq::cuda::FewArgs a) { \
    lpq::cuda::gemm_few<tiles, rows, deep>(a);                                        \
  }
