// gemm_packed for many tokens on devices without wgmma (sm_80 and its like): mma.m16n8k16 from the packed format (docs/kernels.md).
//
// A block's tile is 256 columns by 8 T tokens. Each of eight warps owns 32 columns and all tokens, so every weight is dequantized by one
// warp alone. Weights come from global memory to registers, a packed block ahead: the words of a chunk are fetched again as soon as it is
// multiplied. Activations and the scales of a stage of 64 k go through a ring in shared memory (cp.async), and reach the registers by
// ldmatrix.
//
// The arithmetic is MARLIN's (its section 3.4): weights are dequantized in registers with the scale in the cast, w = T((q - z) s) rounded
// once to the type T of the activations, and the tensor core adds up all of K. q - z is exact where z is a whole number that T takes off
// exactly (f16: to 1024; bf16: to 128, of 8 bits 256); other zero points are TurboMind's, w = T(q s + T(-z s)). With bf16 activations f16
// scales are rounded to bf16 first. So |w - W| <= u |W| (2 u with rounded scales) + u |z s| where z is not whole, u = 2^-11 or 2^-8, and
// 2^-25 where f16 is subnormal; a weight beyond 65504 is infinite in f16.
//
// Tiles are whole where they fill the multiprocessors evenly; else each block owns an equal run of steps, and whoever is last with
// a tile that several blocks share adds up all parts in fp32 in the order of K.
#pragma once
#include "cuda/kernels/cast.cuh"
#include "cuda/kernels/fragment_ptx.cuh"
#include "cuda/kernels/gemm_large.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/stripe_instructions.cuh"

namespace lpq::cuda {

template <bool BF>
__device__ __forceinline__ uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  return BF ? fma_pair_bf16(a, b, c) : fma_pair_f16(a, b, c);
}

// What turns pairs of a row class into weights: fma(fma(pair, gain, offset), scale, shift).
template <class Cast, bool BF>
struct RowFactors {
  uint32_t offset[4], scale[4], shift[4];

  // `scales`, `zeros`: of this group, as packed, in shared memory; 0 where a last packed block has no such group.
  __device__ __forceinline__ void read(const GemmPackedArgs& g, bool there, uint32_t scales, uint32_t zeros, int lane) {
    uint2 pairs = load_shared8(scales + (lane >> 2) * 8);
    if (!there) pairs.x = pairs.y = 0;
    float z[4] = {g.zero, g.zero, g.zero, g.zero};
    if constexpr (Cast::kSums) {
      if (g.zero_kind == 1 && there) {
        const uint32_t bytes = load_shared4(zeros + (lane >> 2) * 4);
#pragma unroll
        for (int r = 0; r < 4; ++r) z[r] += static_cast<float>(bytes >> 8 * r & 255u);
      } else if (g.zero_kind == 2 && there) {
        const uint2 halves = load_shared8(zeros + (lane >> 2) * 8);
#pragma unroll
        for (int r = 0; r < 4; ++r) z[r] += half_to_float((r < 2 ? halves.x : halves.y) >> 16 * (r & 1) & 0xffffu, false);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint32_t bits = (r < 2 ? pairs.x : pairs.y) >> 16 * (r & 1) & 0xffffu;
      const float s = half_to_float(bits, g.scale_bf16 != 0);
      const uint16_t rounded = float_to_half(s, BF);
      scale[r] = both(rounded);
      shift[r] = 0x80008000u;
      if constexpr (Cast::kSums) {
        const float none = -Cast::bias() * Cast::ungain(r), whole = none - z[r];
        const bool exact = z[r] == truncf(z[r]) && fabsf(z[r]) <= (BF ? 256.0f : 1024.0f) && half_to_float(float_to_half(whole, BF), BF) == whole;
        offset[r] = both(float_to_half(exact ? whole : none, BF));
        if (!exact) shift[r] = both(float_to_half(-z[r] * half_to_float(rounded, BF), BF));
      }
    }
  }
  __device__ __forceinline__ uint32_t weights(const Cast& cast, uint32_t pair, int r) const {
    uint32_t d = pair;
    if constexpr (Cast::kSums) d = fma_pair<BF>(pair, both(BF ? 0x3f80u - (Cast::shift(r) << 7) : 0x3c00u - (Cast::shift(r) << 10)), offset[r]);
    else if constexpr (!BF) d = fma_pair<BF>(pair, unpower, 0x80008000u);
    return fma_pair<BF>(d, scale[r], shift[r]);
  }
  uint32_t unpower;  // of floats in f16: what the biases differ by
};

// The token tile and strip of tile `tile`: bands of token tiles, which run along N.
__device__ __forceinline__ void place_tile(const GemmPackedArgs& g, const LargeArgs& a, int tile, int& strip, int& tokens) {
  const int band = tile / (a.band * g.strips), within = tile - band * a.band * g.strips, high = min(a.band, a.token_tiles - band * a.band);
  strip = within / high;
  tokens = band * a.band + within - strip * high;
}

// Sums of a warp, [two 16s of columns][eights of tokens], to y. shelf: the warp's own.
template <int T, bool BF>
__device__ __forceinline__ void store_tile(const GemmPackedArgs& g, bool vectors, const float (&sum)[2][T][4], int n0, int m0, uint32_t shelf, int lane) {
  float bias[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int n = n0 + 8 * r + (lane >> 2);
    bias[r] = g.bias && n < g.n ? half_to_float(g.bias[n], BF) : 0.0f;
  }
#pragma unroll
  for (int t = 0; t < T; t += 2) {
    __syncwarp();
#pragma unroll
    for (int more = 0; more < 2; ++more)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * nt + (i >> 1);
          store_shared2(shelf + (8 * more + 2 * (lane & 3) + (i & 1)) * 80 + (8 * r + (lane >> 2)) * 2, float_to_half(sum[nt][t + more][i] + bias[r], BF));
        }
    __syncwarp();
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int row = 8 * v + (lane >> 2), m = m0 + 8 * t + row, n = n0 + 8 * (lane & 3);
      const uint4 out = load_shared16(shelf + row * 80 + (lane & 3) * 16);
      if (m >= g.m || n >= g.n) continue;
      uint16_t* to = g.y + static_cast<long long>(m) * g.n + n;
      if (vectors && n + 8 <= g.n) {
        *reinterpret_cast<uint4*>(to) = out;
      } else {
        const uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (n + e < g.n) to[e] = static_cast<uint16_t>(words[e / 2] >> 16 * (e & 1));
      }
    }
  }
}

// A tile that several blocks share: true for the last of them, which then has all of its sums. part_of(block): where a block's part is.
template <int T, class Parts>
__device__ __forceinline__ bool gather_tile(const GemmPackedArgs& g, float (&sum)[2][T][4], unsigned* flag, int tile, int top, int bottom, const Parts& part_of) {
  float4* to = part_of(static_cast<int>(blockIdx.x));
#pragma unroll
  for (int v = 0; v < 2 * T; ++v) __stcg(to + v * 32, make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]));
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = atomicAdd(g.counters + tile, 1u);
    __threadfence();
    *flag = before;
    if (before == static_cast<unsigned>(bottom - top)) g.counters[tile] = 0;
  }
  __syncthreads();
  if (*flag != static_cast<unsigned>(bottom - top)) return false;
#pragma unroll
  for (int v = 0; v < 2 * T; ++v) sum[v / T][v % T][0] = sum[v / T][v % T][1] = sum[v / T][v % T][2] = sum[v / T][v % T][3] = 0;
  for (int block = top; block <= bottom; ++block) {
    const float4* from = part_of(block);
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) {
      const float4 part = __ldcg(from + v * 32);
      sum[v / T][v % T][0] += part.x, sum[v / T][v % T][1] += part.y, sum[v / T][v % T][2] += part.z, sum[v / T][v % T][3] += part.w;
    }
  }
  return true;
}

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_large(const GemmPackedArgs& g, const LargeArgs& a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int stage_bytes = large_stage(T);
  const uint32_t ring = shared_address(shared), ring_end = ring + kLargeStages * stage_bytes, shelf = ring_end + warp * kLargeShelf;
  unsigned* const flag = reinterpret_cast<unsigned*>(shared + kLargeStages * stage_bytes + kLargeWarps * kLargeShelf);
  const int steps = g.k_blocks, tiles = g.strips * a.token_tiles;

  // This block's steps: `count` in a row from (tile, step); the next tile is `stride` away.
  int tile, step, count, stride;
  if (a.per > 0) {
    const int first = blockIdx.x * a.per;
    count = max(0, min(a.per, tiles * steps - first));
    tile = first / steps, step = first - tile * steps, stride = 1;
  } else {
    tile = blockIdx.x, step = 0, stride = gridDim.x;
    count = (tiles - tile + stride - 1) / stride * steps;
  }
  if (count <= 0) return;

  const Cast cast(g.is_signed != 0, g.exponent);
  RowFactors<Cast, BF> factors;
  if constexpr (!Cast::kSums) factors.unpower = both(float_to_half(cast.unpower, BF));

  // Activations and scales of half a step, 64 k.
  int load_tile = tile, load_step = step, load_half = 0, load_strip, load_tokens;
  place_tile(g, a, load_tile, load_strip, load_tokens);
  uint32_t load_stage = ring;
  const int chunk = threadIdx.x & 7, first_row = threadIdx.x >> 3;
  const int halves = g.groups_per_block == 4 ? 2 : 1;  // groups of half a step
  const auto load = [&](bool any) {
    if (any) {
      const int column = load_step * kBlockK + load_half * 64 + chunk * 8, token = load_tokens * 8 * T + first_row;
      const bool inside = column < g.k;
      const uint16_t* from = g.x + static_cast<long long>(token) * g.k + column;
#pragma unroll
      for (int i = 0; i < T / 4; ++i) {
        const bool there = inside && token + 32 * i < g.m;
        copy16_async(load_stage + (first_row + 32 * i) * 128 + ((chunk ^ (first_row & 7)) << 4), there ? from + static_cast<long long>(32 * i) * g.k : g.x, there ? 16 : 0);
      }
      const int nb = load_strip * kLargeWarps + warp;
      if (nb < g.n_blocks) {
        const int group = g.channel ? 0 : load_step * g.groups_per_block + (load_half * g.groups_per_block >> 1);
        const long long at = (static_cast<long long>(nb) * g.groups + group) * 32;
        const int there = min(halves, g.groups - group);
        const uint32_t side = load_stage + 1024 * T + warp * kLargeSide;
        if (lane < 4 * there) copy16_async(side + lane * 16, reinterpret_cast<const unsigned char*>(g.scales + at) + lane * 16, 16);
        if (g.zero_kind && lane < 2 * g.zero_kind * there) copy16_async(side + 128 + lane * 16, g.zeros + at * g.zero_kind + lane * 16, 16);
      }
      if ((load_half ^= 1) == 0 && ++load_step == steps) {
        load_step = 0, load_tile += stride;
        if (load_tile < tiles) place_tile(g, a, load_tile, load_strip, load_tokens);
      }
      load_stage += stage_bytes;
      if (load_stage == ring_end) load_stage = ring;
    }
    commit_copies();
  };
  for (int s = 0; s < kLargeStages - 1; ++s) load(s < 2 * count);

  float sum[2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) sum[v / T][v % T][0] = sum[v / T][v % T][1] = sum[v / T][v % T][2] = sum[v / T][v % T][3] = 0;
  };
  clear();

  int strip, tokens;
  place_tile(g, a, tile, strip, tokens);
  // The words of the packed block at hand, and where the next one's are.
  uint32_t q[4 * B];
  const auto words_of = [&](int of_strip, int of_step) -> const unsigned char* {
    const int nb = of_strip * kLargeWarps + warp;
    return nb < g.n_blocks ? g.weights + (static_cast<long long>(nb) * g.k_blocks + of_step) * (512 * B) + lane * 16 : nullptr;
  };
  const unsigned char* next = words_of(strip, step);
  const auto fetch = [&](int from, int to) {
    if (next) {
#pragma unroll
      for (int v = 0; v < B; ++v)
        if (v >= from && v < to) {
          const uint4 four = load_weights16(next + v * 512);
          q[4 * v] = four.x, q[4 * v + 1] = four.y, q[4 * v + 2] = four.z, q[4 * v + 3] = four.w;
        }
    }
  };
#pragma unroll
  for (int i = 0; i < 4 * B; ++i) q[i] = 0;
  fetch(0, B);

  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t pairs_row = (row7 + 8 * (matrix >> 1)) * 128;
  const int pairs_swizzle = (matrix & 1) ^ row7;
  uint32_t stage = ring;
  for (int at = 0; at < count; ++at) {
    const bool tile_ends = step + 1 == steps;
    if (at + 1 < count) {
      if (!tile_ends) {
        next = words_of(strip, step + 1);
      } else {
        int next_strip, next_tokens;
        place_tile(g, a, tile + stride, next_strip, next_tokens);
        next = words_of(next_strip, 0);
      }
    } else {
      next = nullptr;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      wait_copies<kLargeStages - 2>();
      __syncthreads();
      load(2 * at + half + kLargeStages - 1 < 2 * count);
      const uint32_t side = stage + 1024 * T + warp * kLargeSide;
#pragma unroll
      for (int cc = 0; cc < 2; ++cc) {
        const int c = 2 * half + cc;
        const int group = step * g.groups_per_block + (c * g.groups_per_block >> 2);
        if (cc == 0 || g.groups_per_block == 4) factors.read(g, g.channel || group < g.groups, side + cc * 64, side + 128 + cc * 32 * g.zero_kind, lane);
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
          uint32_t w[2][4];
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) w[nt][i] = factors.weights(cast, cast.pair(q + c * B, 4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1)), 2 * nt + (i & 1));
#pragma unroll
          for (int t = 0; t < T; t += 2) {
            uint32_t x[4];
            load_matrices(x, stage + t * 1024 + pairs_row + (((cc * 4 + ks * 2) ^ pairs_swizzle) << 4));
#pragma unroll
            for (int nt = 0; nt < 2; ++nt) {
              multiply<BF>(sum[nt][t], w[nt], x[0], x[1]);
              multiply<BF>(sum[nt][t + 1], w[nt], x[2], x[3]);
            }
          }
        }
        fetch(c * B / 4, (c + 1) * B / 4);
      }
      stage += stage_bytes;
      if (stage == ring_end) stage = ring;
    }

    if (tile_ends || at + 1 == count) {
      bool finishes = true;
      if (a.per > 0) {
        const int top = tile * steps / a.per, bottom = ((tile + 1) * steps - 1) / a.per;
        // A block keeps its first tile's part in its first place, and its last one's in its second.
        if (bottom > top)
          finishes = gather_tile<T>(g, sum, flag, tile, top, bottom, [&](int block) {
            const int second = block * a.per / steps == tile ? 0 : 1;
            return reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(2 * block + second) * kLargeWarps + warp) * (2 * T * 32) + lane;
          });
      }
      const int n0 = (strip * kLargeWarps + warp) * kBlockN;
      if (finishes && n0 < g.n) store_tile<T, BF>(g, a.vectors != 0, sum, n0, tokens * 8 * T, shelf, lane);
      clear();
    }
    ++step;
    if (tile_ends && at + 1 < count) {
      step = 0, tile += stride;
      place_tile(g, a, tile, strip, tokens);
    }
  }
}

template <int B, bool BF>
using WholeIntCast = IntCast<B, BF, !BF>;

}  // namespace lpq::cuda

#define LPQ_LARGE_T(name, tiles, bits, bf, cast)                                                                                          \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kLargeWarps, 1) lpq_large_##name##_t##tiles(                               \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) {                              \
    lpq::cuda::gemm_large<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, a);                                                              \
  }
// Hopper has kernels of its own and takes these for comparisons alone: one of each type, or all with LPQ_LARGE_ALL.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(LPQ_LARGE_ALL)
#define LPQ_LARGE(name, bits, bf, cast) LPQ_LARGE_T(name, 16, bits, bf, cast)
#else
#define LPQ_LARGE(name, bits, bf, cast)   \
  LPQ_LARGE_T(name, 4, bits, bf, cast)    \
  LPQ_LARGE_T(name, 8, bits, bf, cast)    \
  LPQ_LARGE_T(name, 16, bits, bf, cast)
#endif
