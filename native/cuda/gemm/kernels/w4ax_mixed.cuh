// W4Ax for devices without wgmma (code for sm_80, which 8.6 and 8.9 run; COMET, section 4): y = x Wᵀ of 4-bit weights
// in the packed order of docs/internals/layouts/comet.md and activations of 4 or 8 bits by blocks of 128
// channels, a scale a token and block and one a row and block.
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
#include "cuda/gemm/kernels/w4ax_mixed_step.cuh"
#include "cuda/gemm/pipeline.cuh"

namespace lpq::cuda {

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
    keep_vectors(sum, part_of(runs.unit, item == runs.first / a.k_blocks ? 0 : 1));
    if (!runs.all_there(a, item, begun)) return;
    clear_sums(sum);
    runs.each_part(a, item, [&](int block, int place) { add_vectors(sum, part_of(block, place)); });
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
    cp_async_wait_most<2>(ahead - 1);
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
