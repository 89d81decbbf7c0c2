// W4Ax of up to 16 tokens on Hopper: what w4ax_mixed.cuh multiplies, from the same bytes (its header has their order),
// at the speed at which weights come. mma.m16n8k32.s8 for blocks of both precisions: m16n8k64.s4 is emulated there, and
// wgmma would multiply 64 rows for the time that two of these take.
//
// A thread block, one a multiprocessor, has an equal run of tiles of 16 rows. Of its 16 warps S share K, part p of them
// taking blocks p, p + S, ... of 128 of k, and each S have up to R tiles of rows of their own; S is as large as lets
// all rows be gone through in one pass. A warp is alone until the end of a pass: R D tiles of words are under way in
// its registers (evict-first), each replaced as soon as it has become codes. Activations come to shared memory by
// cp.async, all at the beginning, or where they do not fit two blocks of k a warp, S = 16. Nibbles become 16 times the
// code, of activations once a block of k, of weights once a tile (one LOP3, and a shift for the low ones).
//
//   word i of vector v -> (lane, reg i % 2 and, of the high nibbles, 2 + i % 2) of FragmentA<8> number 2 v + i / 2: n =
//                         lane / 4 + 8 (i % 2), k = 32 (2 v + i / 2) + 4 (lane % 4) + byte (+ 16 of the high nibbles)
//
// Sums of a block of k are exact and go into fp32 by one fma, as on the CPU; but y is the sum over parts, in their
// order, of sums over their blocks of k in order.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/kernels/w4ax_few_operands.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A turn: the tiles of set `d` by a block of k, each loaded anew once it has become codes. `count`: tiles that there
// are.
template <int T, int R, int D>
__device__ __forceinline__ void few_multiply(const FewArgs& a, const FewShare& share, FewWeights<R, D>& weights, int d,
                                             uint32_t slot, bool four_bits, int count, float (&sum)[R][T][4],
                                             int lane) {
  const FewTokens<T> tokens(slot, four_bits, lane);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (r < count) {
      FragmentC<int> part[T] = {};
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const FragmentA<8> rows = widen_rows(weights.words[d][r][2 * chunk], weights.words[d][r][2 * chunk + 1]);
#pragma unroll
        for (int i = 0; i < T; ++i) mma_m16n8k32_s8(part[i], rows, tokens.b[i][chunk][0], tokens.b[i][chunk][1]);
      }
      const float row_scale[2] = {__uint_as_float(weights.scales[d][r][0]) * tokens.power,
                                  __uint_as_float(weights.scales[d][r][1]) * tokens.power};
      weights.load(a, share, lane, d, r);
#pragma unroll
      for (int i = 0; i < T; ++i) add_scaled(sum[r][i], part[i], tokens.scale[i], row_scale);
    } else {
      weights.load(a, share, lane, d, r);
    }
  }
  weights.advance(share);
}

// The end of a pass over the rows from `base` on: parts of K are added up in their order, through shared memory.
template <int T, int R>
__device__ __forceinline__ void few_store(const FewArgs& a, const FewShare& share, int base,
                                          const float (&sum)[R][T][4], float4* sums, int warp, int lane) {
#pragma unroll
  for (int v = 0; v < R * T; ++v) sums[(warp * R * T + v) * 32 + lane] = sum_vector(sum, v);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < min(share.pass, share.last - base) * T * 32; i += 32 * kFewWarps) {
    const int row = i / (32 * T), owner = row / a.at_once;
    const float4* const from = sums + (owner * a.split * R + row - owner * a.at_once) * T * 32 + i % (32 * T);
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int w = 0; w < a.split; ++w) add(all, from[w * R * T * 32]);
    store_tile(a, (base + row) * 16, i / 32 % T * 8, all, i % 32);
  }
  __syncthreads();  // before the next rows' sums
}

// T tiles of 8 tokens; R tiles of 16 rows, D blocks of k of each in registers.
template <int T, int R, int D>
__device__ __forceinline__ void gemm_few(const FewArgs& a) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const FewShare share(a, warp);
  unsigned char* const shared = dynamic_shared();
  int* const places = reinterpret_cast<int*>(shared);
  float4* const sums = reinterpret_cast<float4*>(shared + (a.k_blocks + 3) / 4 * 16);
  const uint32_t ring = shared_address(sums) +
                        static_cast<uint32_t>(few_sums_bytes(T, R) + (a.resident ? 0 : warp * 2 * few_slot_bytes(T)));
  const auto slot_at = [&](int slot) { return ring + static_cast<uint32_t>(slot * few_slot_bytes(T)); };
  const auto fetch = [&](int kb, int slot) { few_fetch<T>(a, kb, places[kb], slot_at(slot)); };

  FewWeights<R, D> weights(a, share);
  if (!a.overlap) griddepcontrol_wait_and_launch();
  for (int i = thread; i < a.k_blocks; i += 32 * kFewWarps) places[i] = a.blocks[i];
  weights.begin(a, share, lane);
  if (a.overlap) griddepcontrol_wait_and_launch();
  __syncthreads();
  if (a.resident) {
    for (int kb = warp; kb < a.k_blocks; kb += kFewWarps) fetch(kb, kb);
    cp_async_commit();
    cp_async_wait<0>();
    if (a.split == kFewWarps) __syncwarp();  // a warp's own blocks of k
    else __syncthreads();
  } else if (share.turns > 0) {
    fetch(share.part, 0);
    cp_async_commit();
  }

  // The turn whose activations were fetched last, and its slot, where they are not resident; the set of words.
  int coming = 0, parity = 0, set = 0;
  for (int base = share.first; base < share.last; base += share.pass) {
    const int count = min(a.at_once, share.last - base - share.group * a.at_once);
    float sum[R][T][4] = {};
    for (int turn = 0; turn < share.turns && (count > 0 || !a.resident); ++turn) {
      if (!a.resident) {
        // The next block of k, of the next rows where these end. Its slot has been read a turn ago.
        coming = coming + 1 < share.turns ? coming + 1 : 0;
        fetch(share.part + a.split * coming, parity ^ 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncwarp();
      }
      const auto step = [&](int d) {
        const int kb = share.part + a.split * turn;
        few_multiply<T, R, D>(a, share, weights, d, slot_at(a.resident ? kb : parity), places[kb] < 0, count, sum,
                              lane);
      };
      if (D == 1 || set == 0) step(0);
      else step(D - 1);
      set = D == 1 ? 0 : set ^ 1;
      parity ^= 1;
      if (!a.resident) __syncwarp();
    }
    few_store<T, R>(a, share, base, sum, sums, warp, lane);
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
