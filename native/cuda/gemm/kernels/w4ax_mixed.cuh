// W4Ax for devices without wgmma (code for sm_80, which 8.6 and 8.9 run; COMET, section 4): y = x Wᵀ of 4-bit weights
// in the packed order of docs/layouts.md (comet) and activations of 4 or 8 bits by blocks of 128 channels, a scale a
// token and block and one a row and block.
//
// A block has 128 rows of weights, which are the rows of the product, and 8 T tokens; cp.async feeds a ring of up to
// four stages of 128 of k. A lane's sixteen bytes of a 16-row block are FragmentA<4> of m16n8k64.s4 as they lie, twice,
// and activations of 4 bits are stored in the same order of k: blocks of 4 bits cost no instruction besides the
// product. For m16n8k32.s8 a word's low and high nibbles become two registers of 16 times the code, by one AND and a
// shift for the low ones (zero extension from below, COMET, section 4.3; the location switch has put what the two
// registers need into one word):
//   word i of vector v -> (lane, reg i % 2 and, of the high nibbles, 2 + i % 2) of FragmentA<8> number 2 v + i / 2: n =
//                         lane / 4 + 8 (i % 2), k = 32 (2 v + i / 2) + 4 (lane % 4) + byte (+ 16 of the high nibbles)
// Sums of a block are exact and go into fp32 by one fma, in the order of K: the CPU's bytes, but where blocks share an
// item.
//
// Items (strip x tile of tokens) beyond whole rounds are stream-K by cost: a block of 8 bits counts as two of 4. Who is
// last to be done with a shared item adds up all parts in the order of K: nobody waits, and the same call gives the
// same bytes.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/fragment.cuh"
#include "cuda/gemm/kernels/w4ax_mma.cuh"
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
  static constexpr int kVectors = kRows * kTokens;            // of sums a lane
  static constexpr int kParts = 8 * kVectors * 128;           // floats of a tile
  __device__ __forceinline__ static int row0(int warp) { return warp / kAcross * kRows; }      // in 16s
  __device__ __forceinline__ static int token0(int warp) { return warp % kAcross * kTokens; }  // in 8s
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
      cp_async_16(to + Tile::kX + place_of_8bit(row, chunk), there ? from : a.x8, there ? 16 : 0);
    }
  } else {
    for (int piece = thread; piece < 32 * T; piece += kMixedThreads) {
      const int row = piece / 4, chunk = piece % 4;
      const bool there = token0 + row < a.m;
      const unsigned char* const from =
          a.x4 + static_cast<long long>(token0 + row) * 64 * a.fours + ~place * 64 + chunk * 16;
      cp_async_16(to + Tile::kX + place_of_4bit(row, chunk), there ? from : a.x4, there ? 16 : 0);
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

// One block of 128 of k: its products, exact, and scaled into the sums.
template <int T>
__device__ __forceinline__ void multiply_step(uint32_t at, bool four,
                                              float (&sum)[MixedTile<T>::kRows][MixedTile<T>::kTokens][4], int warp,
                                              int lane) {
  using Tile = MixedTile<T>;
  const int row0 = Tile::row0(warp), token0 = Tile::token0(warp);
  FragmentA<4> w[Tile::kRows][2];
  float row_scale[Tile::kRows][2];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 q = ld_shared_v4(at + (row0 + r) * 1024 + v * 512 + lane * 16);
      w[r][v] = {q.x, q.y, q.z, q.w};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = (row0 + r) * 16 + FragmentC<float>::row(lane, 2 * i);
      row_scale[r][i] = __uint_as_float(ld_shared(at + Tile::kWScales + row * 4)) * (four ? 1.0f : 0.0625f);
    }
  }
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
    const int token = (token0 + t) * 8 + Matrix8x8::addressed_row(lane), matrix = Matrix8x8::addressed(lane);
    FragmentC<int> part[Tile::kRows] = {};
    uint32_t b[4];
    if (four) {
      ldmatrix_x4(b, at + Tile::kX + place_of_4bit(token, matrix));
#pragma unroll
      for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
        for (int v = 0; v < 2; ++v) mma_m16n8k64_s4(part[r], w[r][v], b[2 * v], b[2 * v + 1]);
    } else {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        ldmatrix_x4(b, at + Tile::kX + place_of_8bit(token, 4 * v + matrix));
#pragma unroll
        for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk)
            mma_m16n8k32_s8(part[r], widen_rows(w[r][v][2 * chunk], w[r][v][2 * chunk + 1]), b[2 * chunk],
                            b[2 * chunk + 1]);
      }
    }
    const uint2 scales = ld_shared_v2(at + Tile::kXScales + ((token0 + t) * 8 + FragmentC<float>::column(lane)) * 4);
    const float token_scale[2] = {__uint_as_float(scales.x), __uint_as_float(scales.y)};
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) add_scaled(sum[r][t], part[r], token_scale, row_scale[r]);
  }
}

// The runs of equal cost that blocks have of the shared items, and how their parts are added up.
struct MixedRuns {
  const int* prefix;  // of costs, in shared memory
  volatile int* is_last;
  int unit, units, first = 0, last = 0;

  __device__ __forceinline__ MixedRuns(const MixedArgs& a, int* costs)
      : prefix(costs),
        is_last(costs + a.k_blocks + 1),
        unit(static_cast<int>(blockIdx.x)),
        units(static_cast<int>(gridDim.x)) {
    if (a.shared == 0) return;
    for (int b = static_cast<int>(threadIdx.x); b <= a.k_blocks; b += kMixedThreads) {
      int cost = 0;
      for (int i = 0; i < b; ++i) cost += a.blocks[i] < 0 ? kMixedCost4 : kMixedCost8;
      costs[b] = cost;
    }
    __syncthreads();
    first = begin_of(a, unit), last = begin_of(a, unit + 1);
  }
  __device__ __forceinline__ int begin_of(const MixedArgs& a, int run) const {
    return mixed_start(prefix, a.k_blocks, a.shared, run, units);
  }
  // Counts a block's `steps` of the item in; whether it was the last. Whoever calls has stored its part.
  __device__ __forceinline__ bool all_there(const MixedArgs& a, int item, int steps) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
      *is_last = atomicAdd(a.counters + item, static_cast<unsigned>(steps)) + static_cast<unsigned>(steps) ==
                 static_cast<unsigned>(a.k_blocks);
    __syncthreads();
    if (*is_last == 0) return false;
    __threadfence();
    if (threadIdx.x == 0) a.counters[item] = 0;
    return true;
  }
  // take(block, place): of the blocks that share the item, in the order of K. A block keeps the part of the item that
  // its run begins in at its first place.
  template <class Take>
  __device__ __forceinline__ void each_part(const MixedArgs& a, int item, const Take& take) const {
    // Sharers are few; a unit before the first of them ends at or before the item's beginning.
    const int begin = item * a.k_blocks, end = begin + a.k_blocks;
    int sharer = static_cast<int>(static_cast<long long>(item) * units / a.shared) - 1;
    for (sharer = max(sharer, 0); sharer < units; ++sharer) {
      const int its_first = begin_of(a, sharer), its_last = begin_of(a, sharer + 1);
      if (its_first >= end) break;
      if (its_last <= begin || its_first == its_last) continue;
      take(sharer, its_first >= begin ? 0 : 1);
    }
  }
};

// The end of an item, or of what a block has of it (`begun` steps): whoever has all sums stores them.
template <int T>
__device__ __forceinline__ void end_item(const MixedArgs& a, const MixedRuns& runs, int item, int begun,
                                         float (&sum)[MixedTile<T>::kRows][MixedTile<T>::kTokens][4], int warp,
                                         int lane) {
  using Tile = MixedTile<T>;
  if (begun < a.k_blocks) {
    const auto part_of = [&](int block, int place) {
      return reinterpret_cast<float4*>(a.partial + (block * 2ll + place) * Tile::kParts) + warp * Tile::kVectors * 32 +
             lane;
    };
    float4* const to = part_of(runs.unit, item == runs.first / a.k_blocks ? 0 : 1);
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) __stcg(to + v * 32, sum_vector(sum, v));
    if (!runs.all_there(a, item, begun)) return;
    clear_sums(sum);
    runs.each_part(a, item, [&](int block, int place) {
      const float4* const from = part_of(block, place);
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) add_vector(sum, v, __ldcg(from + v * 32));
    });
  }
  const int row0 = item / a.token_tiles * kMixedRows + Tile::row0(warp) * 16,
            token0 = item % a.token_tiles * 8 * T + Tile::token0(warp) * 8;
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r)
#pragma unroll
    for (int t = 0; t < Tile::kTokens; ++t)
      store_tile(a, row0 + r * 16, token0 + t * 8, sum_vector(sum, r * Tile::kTokens + t), lane);
}

template <int T>
__device__ __forceinline__ void gemm_mixed(const MixedArgs& a) {
  using Tile = MixedTile<T>;
  unsigned char* const shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  constexpr int kStage = mixed_stage_bytes(T);
  const uint32_t ring = shared_address(shared);
  const MixedRuns runs(a, reinterpret_cast<int*>(shared + a.stages * kStage));
  MixedWalk coming(a, runs.first, runs.last, runs.unit, runs.units), walk = coming;
  const auto load = [&](int stage, bool any) {
    if (any) {
      copy_step<T>(a, ring + stage * kStage, coming.item, coming.kb);
      coming.next(a, runs.unit, runs.units);
    }
    cp_async_commit();
  };
  const int ahead = a.stages - 1;
  for (int s = 0; s < ahead; ++s) load(s, s < walk.steps);
  float sum[Tile::kRows][Tile::kTokens][4] = {};
  int begun = 0, into = ahead, from = 0;  // steps of this item; stages
  for (int step = 0; step < walk.steps; ++step) {
    if (ahead == 3) cp_async_wait<2>();
    else if (ahead == 2) cp_async_wait<1>();
    else cp_async_wait<0>();
    __syncthreads();
    load(into, step + ahead < walk.steps);
    if (++into == a.stages) into = 0;
    multiply_step<T>(ring + from * kStage, a.blocks[walk.kb] < 0, sum, warp, lane);
    if (++from == a.stages) from = 0;
    ++begun;
    if (walk.ends(a)) {
      end_item<T>(a, runs, walk.item, begun, sum, warp, lane);
      clear_sums(sum);
      begun = 0;
    }
    walk.next(a, runs.unit, runs.units);
  }
  cp_async_wait<0>();
}

}  // namespace lpq::cuda

#define LPQ_GEMM_MIXED(tiles)                                                   \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kMixedThreads, 1)     \
      lpq_gemm_mixed_t##tiles(const __grid_constant__ lpq::cuda::MixedArgs a) { \
    lpq::cuda::gemm_mixed<tiles>(a);                                            \
  }
