// What brings a stage of stripes.cuh: each thread copies by cp.async codes of its own warp, and its share of the
// block's activations, scales and zero points.
#pragma once
#include "cuda/gemm/families/stripes.h"
#include "cuda/gemm/kernels/column_walk.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/slab_copies.cuh"
#include "cuda/ptx/cp_async.cuh"

namespace lpq::cuda {

// A warp's place in its block, and where things are in a stage: activations, codes, scales, zero points.
template <class Form, int T>
struct StripeTile {
  static constexpr int kBits = Form::kBits, kScale = Form::kScaleBytes;
  static constexpr int kSlab = 8 * T * 128;                          // activations of 64 k
  static constexpr int kSub = kSubTiles<kBits>, kWarpK = 16 * kSub;  // of a warp, a step
  static constexpr int kSlot = kSub * 128 * kBits;                   // its codes
  static constexpr int kZeroBytes = Form::kZeros ? 8 * kBits : 0;    // of 64 columns and a group
  const StripeArgs& g;
  int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), wn = warp & ((1 << g.log_n) - 1),
      wk = warp >> g.log_n;
  int n_tiles = g.n_pad / kTileColumns, step_k = kWarpK << g.log_k,
      rows_of_scales = g.channel ? 1 : max(1, step_k >> g.group_shift);
  int x_bytes = max(1, step_k >> 6) * kSlab, weight_bytes = kSlot << (g.log_n + g.log_k),
      scale_row = (kTileColumns * kScale) << g.log_n, zero_row = kZeroBytes << g.log_n,
      stage_bytes = (x_bytes + weight_bytes + rows_of_scales * (scale_row + zero_row) + 127) & ~127;

  __device__ __forceinline__ int columns_of(int strip) const { return (strip << g.log_n) + wn; }
};

template <class Form, int T>
struct StripeProducer {
  using Tile = StripeTile<Form, T>;
  static constexpr int kLogChunks = Tile::kSub == 4 ? 3 : 2;  // eights of k of a warp's share
  // Copies of scales and of zero points for 64 columns and a group: at most one a thread and step.
  static constexpr int kScaleLog = Tile::kScale == 1   ? 2
                                   : Tile::kScale == 2 ? 3
                                                       : 4,
                       kZeroLog = Tile::kBits == 4 ? 1 : 2;
  const StripeArgs& g;
  const Tile& tile;
  const CopyPipeline& ring;
  ColumnWalk at;
  SlabCopies<T, kLogChunks> x{g.x, g.m, g.k, g.log_n, g.log_k};
  // A register of the thread's own: from an address with a part in a uniform register ptxas 13.0 makes copies whose
  // cache descriptor it never sets (desc[UR1]), which the device refuses as an illegal instruction.
  uint32_t stage = ring.begin, w_first = ring.begin + tile.x_bytes + tile.warp * Tile::kSlot + tile.lane * 16,
           w_to = w_first;
  int s_row = threadIdx.x >> (kScaleLog + g.log_n), s_chunk = threadIdx.x & ((1 << (kScaleLog + g.log_n)) - 1),
      z_row = threadIdx.x >> (kZeroLog + g.log_n), z_chunk = threadIdx.x & ((1 << (kZeroLog + g.log_n)) - 1),
      s_pitch = g.n_pad * Tile::kScale, z_pitch = tile.n_tiles * Tile::kZeroBytes;
  long long w_jump = (static_cast<long long>(Tile::kSub) << g.log_k) * g.k_stride;
  const unsigned char* w_from;
  int w_left, k, s_at, z_at;

  __device__ __forceinline__ StripeProducer(const StripeArgs& args, const Tile& of, const CopyPipeline& pipeline,
                                            const ColumnWalk& walk)
      : g(args), tile(of), ring(pipeline), at(walk) {
    aim();
  }

  // At the step where `at` stands.
  __device__ __forceinline__ void aim() {
    const int nt = tile.columns_of(at.strip);
    constexpr int kLanes = 4 * Tile::kBits;  // of a piece of 32 columns
    k = at.step * tile.step_k;
    w_from = g.weights + (2 * nt + tile.lane / kLanes) * g.n_stride + tile.lane % kLanes * 16 +
             ((at.step << g.log_k) + tile.wk) * Tile::kSub * g.k_stride;
    w_left = nt < tile.n_tiles ? g.k_pad - k - tile.wk * Tile::kWarpK : 0;
    x.aim((g.first_batch + at.batch) * 8 * T, k);
    s_at = (at.strip << g.log_n) * (kTileColumns * Tile::kScale) + s_chunk * 16;
    z_at = (at.strip << g.log_n) * Tile::kZeroBytes + z_chunk * 16;
    if (g.channel || s_row >= tile.rows_of_scales || s_at >= s_pitch) s_at = -1;
    if (z_row >= tile.rows_of_scales || z_at >= z_pitch) z_at = -1;
  }
  __device__ __forceinline__ void copy_codes() const {
    const unsigned char* codes = w_from;
#pragma unroll
    for (int s = 0; s < Tile::kSub; ++s, codes += g.k_stride) {
      if (16 * s < w_left) {
#pragma unroll
        for (int v = 0; v < Tile::kBits / 4; ++v)
          cp_async_16_hint(w_to + s * (128 * Tile::kBits) + v * 512, codes + v * g.n_stride, g.policy);
      }
    }
  }
  __device__ __forceinline__ void copy_scales() const {
    const uint32_t side = stage + tile.x_bytes + tile.weight_bytes + threadIdx.x * 16;
    const int group = g.channel ? 0 : k >> g.group_shift;
    if (s_at >= 0 && group + s_row < g.groups)
      cp_async_16(side, g.scales + (static_cast<long long>(group + s_row) * s_pitch + s_at), 16);
    if constexpr (Form::kZeros) {
      if (z_at >= 0 && group + z_row < g.groups)
        cp_async_16(side + tile.rows_of_scales * tile.scale_row,
                    g.zeros + (static_cast<long long>(group + z_row) * z_pitch + z_at), 16);
    }
  }
  // A stage, if there is `any` left.
  __device__ __forceinline__ void load(bool any) {
    if (any) {
      copy_codes();
      x.copy(stage);
      copy_scales();
      w_from += w_jump, w_left -= tile.step_k, k += tile.step_k;
      x.advance(tile.step_k);
      if (at.column_ends(g.steps)) {
        at.next_column(g.strips);
        aim();
      }
      ring.advance(stage);
      w_to += tile.stage_bytes;
      if (stage == ring.begin) w_to = w_first;
    }
    ring.producer_commit();
  }
};

}  // namespace lpq::cuda
