// What brings a stage of sparse.cuh: each thread by cp.async, codes, metadata and scales of its own warp and its share
// of the block's activations; on Hopper one thread by TMA, a box a tensor.
#pragma once
#include "cuda/gemm/families/sparse.h"
#include "cuda/gemm/kernels/column_walk.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/slab_copies.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/tma.cuh"

namespace lpq::cuda {

// A warp's place in its block, and where things are in shared memory.
template <int Bits, int T>
struct SparseTile {
  static constexpr int kTile = 128 * Bits;   // codes of 64 columns by 32 k
  static constexpr int kSlab = 8 * T * 128;  // activations of 64 k
  const SparseArgs& g;
  int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), wn = warp & ((1 << g.log_n) - 1),
      wk = warp >> g.log_n, n_tiles = g.n_pad / kSparseColumns, k_units = g.k_pad / kSparseK;
  SparseShared place = sparse_shared(Bits, T, g.log_n, g.log_k, g.stages);

  __device__ __forceinline__ int columns_of(int strip) const { return (strip << g.log_n) + wn; }
  // Whether a warp has columns and k in a step.
  __device__ __forceinline__ bool has(const ColumnWalk& at) const {
    return columns_of(at.strip) < n_tiles && (at.step << g.log_k) + wk < k_units;
  }
};

template <int Bits, int T>
struct SparseProducer {
  using Tile = SparseTile<Bits, T>;
  static constexpr int kTile = Tile::kTile, kCodes = 4 * kTile;
  const SparseArgs& g;
  const Tile& tile;
  const CopyPipeline& ring;
  ColumnWalk at;
  SlabCopies<T, 4> x{g.x, g.m, g.k, g.log_n, g.log_k};
  // A register of the thread's own: from an address with a part in a uniform register ptxas 13.0 makes copies whose
  // cache descriptor it never sets, which the device refuses as an illegal instruction.
  uint32_t stage = ring.begin, w_first = ring.begin + tile.place.x + tile.warp * kSparseSlot<Bits> + tile.lane * 16,
           w_to = w_first;
  long long code_row = static_cast<long long>(tile.n_tiles) * kTile,  // of 32 k
      meta_row = static_cast<long long>(tile.n_tiles) * 256;
  const unsigned char *codes_from, *meta_from, *scales_from;
  bool w_any;
  int w_left;

  __device__ __forceinline__ SparseProducer(const SparseArgs& args, const Tile& of, const CopyPipeline& pipeline,
                                            const ColumnWalk& walk)
      : g(args), tile(of), ring(pipeline), at(walk) {
    aim();
  }
  // At the step where `at` stands.
  __device__ __forceinline__ void aim() {
    const int nt = tile.columns_of(at.strip), unit = (at.step << g.log_k) + tile.wk;
    w_any = nt < tile.n_tiles, w_left = tile.k_units - unit;
    codes_from = g.weights + nt * static_cast<long long>(kTile) + unit * 4 * code_row + tile.lane * 16;
    // Half a warp copies one tile's metadata.
    meta_from = g.metadata + nt * 256ll + (unit * 4 + (tile.lane >> 4)) * meta_row + (tile.lane & 15) * 16;
    scales_from = g.scales + (static_cast<long long>(unit) * g.n_pad + nt * kSparseColumns) * 2 + tile.lane * 16;
    x.aim(at.batch * 8 * T, (at.step * kSparseK) << g.log_k);
  }
  __device__ __forceinline__ void copy_weights() const {
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int v = 0; v < Bits / 4; ++v)
        cp_async_16_hint(w_to + s * kTile + v * 512, codes_from + s * code_row + v * 512, g.policy);
#pragma unroll
    for (int s = 0; s < 2; ++s) cp_async_16_hint(w_to + kCodes + s * 512, meta_from + 2 * s * meta_row, g.policy);
    if (tile.lane < 8 && !g.channel) cp_async_16_hint(w_to + kCodes + 1024, scales_from, g.policy);
  }
  // A stage, if there is `any` left.
  __device__ __forceinline__ void load(bool any) {
    if (any) {
      x.copy(stage);
      if (w_any && w_left > 0) copy_weights();
      codes_from += (4 * code_row) << g.log_k, meta_from += (4 * meta_row) << g.log_k,
          scales_from += (2ll * g.n_pad) << g.log_k;
      w_left -= 1 << g.log_k;
      x.advance(kSparseK << g.log_k);
      if (at.column_ends(g.steps)) {
        at.next_column(g.strips);
        aim();
      }
      ring.advance(stage);
      w_to += ring.bytes;
      if (stage == ring.begin) w_to = w_first;
    }
    ring.producer_commit();
  }
};

#if LPQ_HAS_WGMMA
// A stage that TMA fills: activations; rows of tiles of codes, of metadata, and of scales.
template <int Bits, int T>
struct SparseStage {
  int code_row, meta_row, codes, metadata, scales;
  __device__ __forceinline__ SparseStage(const SparseArgs& g, const SparseShared& place)
      : code_row(SparseTile<Bits, T>::kTile << g.log_n),
        meta_row(256 << g.log_n),
        codes(place.x),
        metadata(codes + (code_row << (2 + g.log_k))),
        scales(metadata + (meta_row << (2 + g.log_k))) {}
};

// Copies all `count` steps from `at` on, by one thread.
template <int Bits, int T>
__device__ __forceinline__ void produce_sparse(const SparseArgs& g, const SparseMaps& maps,
                                               const SparseTile<Bits, T>& tile, const TmaPipeline& pipeline,
                                               uint32_t ring, ColumnWalk at, int count) {
  using Tile = SparseTile<Bits, T>;
  const SparseStage<Bits, T> parts(g, tile.place);
  const int warps = 1 << (g.log_n + g.log_k), ahead = min(count, g.stages),
            bytes = (Tile::kSlab * 2 << g.log_k) + (4 * Tile::kTile + 4 * 256 + (g.channel ? 0 : 128)) * warps;
  const auto copy_weights = [&](int slot, const ColumnWalk& of) {
    const uint32_t stage = ring + slot * tile.place.stage, barrier = pipeline.producer_commit(slot, bytes);
    const int unit = of.step << g.log_k, nt = of.strip << g.log_n;
    tma_load_3d_evict_first(stage + parts.codes, &maps.weights, 0, nt, 4 * unit, barrier);
    tma_load_3d_evict_first(stage + parts.metadata, &maps.metadata, 0, nt, 4 * unit, barrier);
    if (!g.channel) tma_load_3d_evict_first(stage + parts.scales, &maps.scales, 0, nt, unit, barrier);
  };
  // Weights of the first stages, which the operation before did not write.
  ColumnWalk early = at;
  for (int slot = 0; slot < ahead; ++slot) {
    copy_weights(slot, early);
    if (early.column_ends(g.steps)) early.next_column(g.strips);
  }
  if (g.overlap) griddepcontrol_wait_and_launch();
  PipelineState state;
  for (int step = 0; step < count; ++step) {
    if (step >= ahead) {
      pipeline.producer_acquire(state);
      copy_weights(state.stage, at);
    }
    tma_load_3d(ring + state.stage * tile.place.stage, &maps.x, 0, at.batch * 8 * T, 2 * (at.step << g.log_k),
                pipeline.full + 8 * state.stage);
    state.advance(g.stages);
    if (at.column_ends(g.steps)) at.next_column(g.strips);
  }
}
#endif

}  // namespace lpq::cuda
