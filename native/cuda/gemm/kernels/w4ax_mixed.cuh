// W4Ax for devices without wgmma (code for sm_80, which 8.6 and 8.9 run; COMET, section 4): y = x Wᵀ of 4-bit weights
// in the packed order of docs/layouts.md (comet) and activations of 4 or 8 bits by blocks of 128 channels, a scale a
// token and block and one a row and block.
//
// A block has 128 rows of weights, which are the rows of the product, and 8 T tokens; cp.async feeds a ring of up to
// four stages of 128 of k. A lane's sixteen bytes of a 16-row block are two k64 registers sets of m16n8k64.s4 as they
// lie, and activations of 4 bits are stored
// in the same order of k: blocks of 4 bits cost no instruction besides the product. For m16n8k32.s8 a word's low and
// high nibbles become two registers of 16 times the code, by one AND and a shift for the low ones (zero extension from
// below, COMET, section 4.3; the location switch has put what the two registers need into one word):
//   word i of lane's vector v: (lane, 2 v + i / 2 = chunk of 32 k, i % 2 = register) -> n = lane / 4 + 8 (i % 2),
//                              k = 32 chunk + 4 (lane % 4) + byte (+ 16 in the high nibbles)
// Sums of a block are exact and go into fp32 by one fma, in the order of K: the CPU's bytes, but where blocks share an
// item.
//
// Items (strip x tile of tokens) beyond whole rounds are cut into runs of equal cost, a block of 8 bits counting twice
// one of 4. Who is last to be done with a shared item adds up all parts in the order of K: nobody waits, and the same
// call gives the same bytes.
#pragma once
#include "cuda/gemm/kernels/w4ax_store.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

template <int T>
struct MixedTile {
  static constexpr int kAcross = T >= 8 ? 2 : 1;              // warps side by side along the tokens
  static constexpr int kRows = 128 * kAcross / 8 / 16;        // tiles of 16 rows a warp
  static constexpr int kTokens = T / kAcross;                 // tiles of 8 tokens a warp
  static constexpr int kX = 64 * kMixedRows;                  // where a stage's activations begin,
  static constexpr int kWScales = kX + 1024 * T;              // the scales of its rows
  static constexpr int kXScales = kWScales + 4 * kMixedRows;  // and of its tokens
  static constexpr int kParts = 8 * kRows * kTokens * 128;    // floats of a tile
};

// Starts the copies of one step: weights, activations and scales. What lies outside the tensors is 0.
template <int T>
__device__ __forceinline__ void copy_step(const MixedArgs& a, uint32_t to, int item, int kb) {
  using Tile = MixedTile<T>;
  const int strip = item / a.token_tiles, token0 = item % a.token_tiles * 8 * T, thread = static_cast<int>(threadIdx.x);
  const int rows = (a.n + 15) / 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int piece = thread + i * kMixedThreads, row = strip * 8 + piece / 64;
    const unsigned char* const from = a.w + (static_cast<long long>(row) * a.k_blocks + kb) * 1024 + piece % 64 * 16;
    cp_async_16(to + piece * 16, row < rows ? from : a.w, row < rows ? 16 : 0);
  }
  const int place = a.blocks[kb];
  if (place >= 0) {
    for (int piece = thread; piece < 64 * T; piece += kMixedThreads) {
      const int row = piece / 8, chunk = piece % 8;
      const bool there = token0 + row < a.m;
      const signed char* const from =
          a.x8 + static_cast<long long>(token0 + row) * 128 * a.eights + place * 128 + chunk * 16;
      cp_async_16(to + Tile::kX + row * 128 + ((chunk ^ (row & 7)) << 4), there ? from : a.x8, there ? 16 : 0);
    }
  } else {
    for (int piece = thread; piece < 32 * T; piece += kMixedThreads) {
      const int row = piece / 4, chunk = piece % 4;
      const bool there = token0 + row < a.m;
      const unsigned char* const from =
          a.x4 + static_cast<long long>(token0 + row) * 64 * a.fours + ~place * 64 + chunk * 16;
      cp_async_16(to + Tile::kX + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4), there ? from : a.x4, there ? 16 : 0);
    }
  }
  for (int piece = thread; piece < 32 + 2 * T; piece += kMixedThreads) {
    const bool weights = piece < 32;
    const int at = weights ? strip * kMixedRows + piece * 4 : token0 + (piece - 32) * 4,
              pitch = weights ? a.w_pitch : a.x_pitch;
    const float* const from = weights ? a.w_scales : a.x_scales;
    cp_async_16(to + Tile::kWScales + piece * 16, at < pitch ? from + static_cast<long long>(kb) * pitch + at : from,
                at < pitch ? 16 : 0);
  }
}

// One block of 128 of k: its products, and sum = fma(product, scale of the token x scale of the row, sum).
template <int T>
__device__ __forceinline__ void multiply_step(uint32_t at, bool four,
                                              float (&sum)[MixedTile<T>::kRows][MixedTile<T>::kTokens][4], int warp,
                                              int lane) {
  using Tile = MixedTile<T>;
  const int row0 = warp / Tile::kAcross * Tile::kRows, token0 = warp % Tile::kAcross * Tile::kTokens;
  uint32_t w[Tile::kRows][2][4];
  float row_scale[Tile::kRows][2];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 q = ld_shared_v4(at + (row0 + r) * 1024 + v * 512 + lane * 16);
      w[r][v][0] = q.x, w[r][v][1] = q.y, w[r][v][2] = q.z, w[r][v][3] = q.w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      row_scale[r][i] = __uint_as_float(ld_shared(at + Tile::kWScales + ((row0 + r) * 16 + 8 * i + (lane >> 2)) * 4)) *
                        (four ? 1.0f : 0.0625f);
  }
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
    const int token = (token0 + t) * 8 + (lane & 7), matrix = lane >> 3;
    int part[Tile::kRows][4] = {};
    if (four) {
      uint32_t b[4];
      ldmatrix_x4(b, at + Tile::kX + token * 64 + ((matrix ^ (token >> 1 & 3)) << 4));
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
        for (int v = 0; v < 2; ++v) mma_m16n8k64_s4(part[r], w[r][v], b[2 * v], b[2 * v + 1]);
    } else {
      constexpr uint32_t kHigh = 0xf0f0f0f0u;
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        uint32_t b[4];
        ldmatrix_x4(b, at + Tile::kX + token * 128 + (((4 * v + matrix) ^ (token & 7)) << 4));
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk) {
            const uint32_t low = w[r][v][2 * chunk], high = w[r][v][2 * chunk + 1];
            const uint32_t wide[4] = {low << 4 & kHigh, high << 4 & kHigh, low & kHigh, high & kHigh};
            mma_m16n8k32_s8(part[r], wide, b[2 * chunk], b[2 * chunk + 1]);
          }
      }
    }
    const uint2 scales = ld_shared_v2(at + Tile::kXScales + ((token0 + t) * 8 + 2 * (lane & 3)) * 4);
    const float token_scale[2] = {__uint_as_float(scales.x), __uint_as_float(scales.y)};
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[r][t][i] = fmaf(static_cast<float>(part[r][i]), token_scale[i & 1] * row_scale[r][i >> 1], sum[r][t][i]);
  }
}

template <int T>
__device__ __forceinline__ void gemm_mixed(const MixedArgs& a) {
  using Tile = MixedTile<T>;
  unsigned char* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int unit = static_cast<int>(blockIdx.x), units = static_cast<int>(gridDim.x);
  constexpr int kStage = mixed_stage_bytes(T);
  const uint32_t ring = shared_address(shared);
  int* const prefix = reinterpret_cast<int*>(shared + a.stages * kStage);
  volatile int* const is_last = prefix + a.k_blocks + 1;
  int first = 0, last = 0;
  if (a.shared > 0) {
    for (int b = thread; b <= a.k_blocks; b += kMixedThreads) {
      int cost = 0;
      for (int i = 0; i < b; ++i) cost += a.blocks[i] < 0 ? kMixedCost4 : kMixedCost8;
      prefix[b] = cost;
    }
    __syncthreads();
    first = mixed_start(prefix, a.k_blocks, a.shared, unit, units),
    last = mixed_start(prefix, a.k_blocks, a.shared, unit + 1, units);
  }
  MixedWalk coming(a, first, last, unit, units), walk = coming;
  const int ahead = a.stages - 1;
  for (int s = 0; s < ahead; ++s) {
    if (s < walk.steps) copy_step<T>(a, ring + s * kStage, coming.item, coming.kb), coming.next(a, unit, units);
    cp_async_commit();
  }
  float sum[Tile::kRows][Tile::kTokens][4] = {};
  int begun = 0, into = ahead, from = 0;  // steps of this item; stages
  for (int step = 0; step < walk.steps; ++step) {
    if (ahead == 3) cp_async_wait<2>();
    else if (ahead == 2) cp_async_wait<1>();
    else cp_async_wait<0>();
    __syncthreads();
    if (step + ahead < walk.steps)
      copy_step<T>(a, ring + into * kStage, coming.item, coming.kb), coming.next(a, unit, units);
    cp_async_commit();
    if (++into == a.stages) into = 0;
    multiply_step<T>(ring + from * kStage, a.blocks[walk.kb] < 0, sum, warp, lane);
    if (++from == a.stages) from = 0;
    ++begun;
    if (walk.ends(a)) {
      const int item = walk.item, row0 = item / a.token_tiles * kMixedRows + warp / Tile::kAcross * Tile::kRows * 16;
      const int token0 = item % a.token_tiles * 8 * T + warp % Tile::kAcross * Tile::kTokens * 8;
      bool stores = begun == a.k_blocks;
      if (!stores) {
        // A block keeps the sums of the item that its run begins in at its first place.
        const long long place = static_cast<long long>(unit) * 2 + (item == first / a.k_blocks ? 0 : 1);
        float4* const to = reinterpret_cast<float4*>(a.partial + place * Tile::kParts) +
                           warp * Tile::kRows * Tile::kTokens * 32 + lane;
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
          for (int t = 0; t < Tile::kTokens; ++t)
            __stcg(to + (r * Tile::kTokens + t) * 32,
                   make_float4(sum[r][t][0], sum[r][t][1], sum[r][t][2], sum[r][t][3]));
        __threadfence();
        __syncthreads();
        if (thread == 0)
          *is_last = atomicAdd(a.counters + item, static_cast<unsigned>(begun)) + static_cast<unsigned>(begun) ==
                     static_cast<unsigned>(a.k_blocks);
        __syncthreads();
        stores = *is_last != 0;
        if (stores) {
          __threadfence();
          if (thread == 0) a.counters[item] = 0;
#pragma unroll
          for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
            for (int t = 0; t < Tile::kTokens; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[r][t][i] = 0;
          // Sharers are few; a unit before the first of them ends at or before the item's beginning.
          const int begin = item * a.k_blocks, end = begin + a.k_blocks;
          int sharer = static_cast<int>(static_cast<long long>(item) * units / a.shared) - 1;
          for (sharer = max(sharer, 0); sharer < units; ++sharer) {
            const int its_first = mixed_start(prefix, a.k_blocks, a.shared, sharer, units),
                      its_last = mixed_start(prefix, a.k_blocks, a.shared, sharer + 1, units);
            if (its_first >= end) break;
            if (its_last <= begin || its_first == its_last) continue;
            const long long its_place = static_cast<long long>(sharer) * 2 + (its_first >= begin ? 0 : 1);
            const float4* const part = reinterpret_cast<const float4*>(a.partial + its_place * Tile::kParts) +
                                       warp * Tile::kRows * Tile::kTokens * 32 + lane;
#pragma unroll
            for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
              for (int t = 0; t < Tile::kTokens; ++t) {
                const float4 v = __ldcg(part + (r * Tile::kTokens + t) * 32);
                sum[r][t][0] += v.x, sum[r][t][1] += v.y, sum[r][t][2] += v.z, sum[r][t][3] += v.w;
              }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
        for (int t = 0; t < Tile::kTokens; ++t) {
          if (stores) store_four(a, row0 + r * 16, token0 + t * 8, sum[r][t], lane);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[r][t][i] = 0;
        }
      begun = 0;
    }
    walk.next(a, unit, units);
  }
  cp_async_wait<0>();
}

}  // namespace lpq::cuda

#define LPQ_GEMM_MIXED(tiles)                                                   \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kMixedThreads, 1)     \
      lpq_gemm_mixed_t##tiles(const __grid_constant__ lpq::cuda::MixedArgs a) { \
    lpq::cuda::gemm_mixed<tiles>(a);                                            \
  }
