// Which steps a block of large.cuh does, and the copies that bring them.
#pragma once
#include "cuda/gemm/families/large.h"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/unroll.cuh"

namespace lpq::cuda {

// The token tile and strip of tile `tile`: bands of token tiles, which run along N.
__device__ __forceinline__ void place_tile(const GemmPackedArgs& g, const LargeArgs& a, int tile, int& strip,
                                           int& tokens) {
  const int band = tile / (a.band * g.strips), within = tile - band * a.band * g.strips,
            high = min(a.band, a.token_tiles - band * a.band);
  strip = within / high;
  tokens = band * a.band + within - strip * high;
}

// A block's steps: `count` in a row from (tile, step); the next tile is `stride` away.
struct LargeWalk {
  int tile, step, count, stride;

  __device__ __forceinline__ LargeWalk(const LargeArgs& a, int tiles, int steps) {
    if (a.per > 0) {
      const int first = blockIdx.x * a.per;
      count = max(0, min(a.per, tiles * steps - first));
      tile = first / steps, step = first - tile * steps, stride = 1;
    } else {
      tile = blockIdx.x, step = 0, stride = gridDim.x;
      count = (tiles - tile + stride - 1) / stride * steps;
    }
  }
};

// The copies of a thread, stages of 64 k in order: activations, and words. Those of half H of a step
// are spread over kSlots places between products.
template <int R, int T, class Weights>
struct LargeProducer {
  static constexpr int kSlots = 2 * R;
  const GemmPackedArgs& g;
  const LargeArgs& a;
  Weights& weights;
  const int steps, tiles, stride;
  const uint32_t ring, ring_end;
  int tile, step, strip, tokens;
  uint32_t stage, x_to;
  long long x_jump;
  const uint16_t* x_from;
  int x_tokens, x_left;

  __device__ __forceinline__ LargeProducer(const GemmPackedArgs& g_, const LargeArgs& a_, Weights& weights_,
                                           const LargeWalk& walk, int steps_, int tiles_, uint32_t ring_,
                                           uint32_t ring_end_)
      : g(g_),
        a(a_),
        weights(weights_),
        steps(steps_),
        tiles(tiles_),
        stride(walk.stride),
        ring(ring_),
        ring_end(ring_end_),
        tile(walk.tile),
        step(walk.step),
        stage(ring_) {
    place_tile(g, a, tile, strip, tokens);
    x_to = row() * 128 + ((chunk() ^ (row() & 7)) << 4), x_jump = 32ll * g.k;
    aim();
  }
  // Copies of place N. Copies of nothing fill a stage with zeros that nobody reads.
  template <int H, int N>
  __device__ __forceinline__ void copy(bool any) const {
    constexpr int kCopies = T / 4 + Weights::template kHalf<H>;
    const int most = any && x_left > 0 ? x_tokens : 0;
    each<kCopies * N / kSlots, kCopies*(N + 1) / kSlots>([&](auto which) {
      constexpr int I = decltype(which)::value;
      if constexpr (I < T / 4) cp_async_16(stage + x_to + I * 4096, x_from + I * x_jump, 32 * I < most ? 16 : 0);
      else weights.template copy<H, I - T / 4>(any, stage);
    });
  }
  // After the last of them.
  template <int H>
  __device__ __forceinline__ void commit(bool any, int half) {
    cp_async_commit();
    weights.template copied<H>(any, half);
    x_from += 64, x_left -= 64;
    stage += Weights::kStage;
    if (stage == ring_end) stage = ring;
    if (half == 1 && ++step == steps) {
      step = 0, tile += stride;
      if (tile < tiles) {
        place_tile(g, a, tile, strip, tokens);
        aim();
      }
    }
  }

 private:
  __device__ __forceinline__ static int chunk() { return threadIdx.x & 7; }
  __device__ __forceinline__ static int row() { return threadIdx.x >> 3; }
  __device__ __forceinline__ void aim() {
    const int column = step * kBlockK + chunk() * 8, token = tokens * 8 * T + row();
    x_from = g.x + static_cast<long long>(token) * g.k + column;
    x_tokens = g.m - token, x_left = g.k - column;
    weights.aim(strip, step);
  }
};

}  // namespace lpq::cuda
