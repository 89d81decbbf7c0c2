// y[m][n] = sum_k x[m][k] (decode(q[n][k]) - zero) scale [+ bias], weights in the packed format (docs/kernels.md), at
// most 8 * T tokens. The weights are operand A of mma.m16n8k16 (rows are n), the activations operand B, so tokens come
// in eights.
//
// A block owns a run of steps; a step is warps_n x warps_k blocks of 32 n x 128 k, one a warp, and steps run along K
// through a strip of 32 warps_n columns, then into the next strip: every multiprocessor streams the same number of
// bytes whatever the shape. Weights, scales and zero points reach a warp through a ring in shared memory of its own,
// activations through one of the block. Codes are multiplied as they lie (dequant.cuh); scales, offsets and zero points
// come in fp32, once a group:
//   sum_k x (gain code + offset - zero') = P - zero' S,   S = sum_k x.
// S is shared by the warps along N: each sums some tokens of the next step while this one is multiplied. This is the
// kernel of all devices but Hopper, which has its own (packed_sm90.cuh). At a strip's end the warps along K add up
// in pairs; strips that several blocks share go through `partial`, and each sharer adds up a slice of the tile in the
// order of the blocks. No sum depends on timing.
#pragma once
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/packed_sm90.cuh"
#include "cuda/gemm/kernels/stream.cuh"
#include "cuda/gemm/kernels/wide.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// A pair of f16 as the sum of two pairs of bf16, exactly (11 bits are 8 and 3).
__device__ __forceinline__ void split_halves(uint32_t pair, uint32_t& high, uint32_t& low) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  const uint32_t a = __float_as_uint(v.x) & 0xffff0000u, b = __float_as_uint(v.y) & 0xffff0000u;
  high = __byte_perm(a, b, 0x7632);
  low = __byte_perm(__float_as_uint(v.x - __uint_as_float(a)), __float_as_uint(v.y - __uint_as_float(b)), 0x7632);
}

// XB: activations, outputs and bias are bf16, else f16. Cast: IntCast<B, WB> or FloatCast<B, WB>, WB: multiplied as
// bf16.
template <int B, int T, bool XB, bool WB, class Cast>
__device__ __forceinline__ void gemm_packed(const GemmPackedArgs& g) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int wn = warp % g.warps_n, wk = warp / g.warps_n, warps = g.warps_n * g.warps_k;
  constexpr int kSlab =
      8 * T * 128;  // activations of 64 k: 128 bytes a token, chunks of 16 xor-ed with the token's number modulo 8
  const int scale_bytes = 64 * g.groups_per_block;
  const int zero_bytes = g.zero_kind == 0 ? 0 : g.zero_kind * scale_bytes / 2;
  const int slot_bytes = 512 * B + scale_bytes + zero_bytes;
  const int x_bytes = g.warps_k * 2 * kSlab;
  const int stage_bytes = (x_bytes + warps * slot_bytes + 1023) & ~1023;
  const uint32_t ring = shared_address(shared) + 1024;
  // Sums of activations: [two steps][warps_k][4 groups][8 T tokens].
  float* const sums = reinterpret_cast<float*>(shared + 1024 + g.stages * stage_bytes);
  float4* const exchange = reinterpret_cast<float4*>(sums + g.warps_k * 64 * T);

  const long long total = static_cast<long long>(g.strips) * g.steps;
  const int first = static_cast<int>(blockIdx.x * total / gridDim.x),
            last = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);
  const int count = last - first;

  const Cast cast(g.is_signed != 0, g.exponent);

  // What a step loads.
  int load_strip = first / g.steps, load_step = first % g.steps, load_stage = 0;
  const auto load = [&](bool any) {
    if (any) {
      const uint32_t stage = ring + load_stage * stage_bytes;
      const int k0 = load_step * g.warps_k * kBlockK;
      for (int i = threadIdx.x; i < g.warps_k * 16 * 8 * T; i += blockDim.x) {
        const int chunk = i & 15, row = (i >> 4) & (8 * T - 1), slabs = (i >> 4) / (8 * T),
                  column = k0 + slabs * 128 + chunk * 8;
        const bool inside = row < g.m && column < g.k;
        cp_async_16(stage + (2 * slabs + (chunk >> 3)) * kSlab + row * 128 + (((chunk & 7) ^ (row & 7)) << 4),
                    g.x + (inside ? static_cast<long long>(row) * g.k + column : 0), inside ? 16 : 0);
      }
      const int nb = load_strip * g.warps_n + wn, kb = load_step * g.warps_k + wk;
      if (nb < g.n_blocks && kb < g.k_blocks) {
        const uint32_t slot = stage + x_bytes + warp * slot_bytes;
        const unsigned char* from = g.weights + (static_cast<long long>(nb) * g.k_blocks + kb) * (512 * B);
        const int group = g.channel ? 0 : kb * g.groups_per_block;
        const int groups = min(g.groups_per_block, g.groups - group);
        const long long at = (static_cast<long long>(nb) * g.groups + group) * 32;
        const uint16_t* scales = g.scales + at;
        const unsigned char* zeros = g.zeros + at * g.zero_kind;
#pragma unroll
        for (int v = 0; v < B; ++v) cp_async_16(slot + v * 512 + lane * 16, from + v * 512 + lane * 16, 16);
        if (lane < 4 * groups)
          cp_async_16(slot + 512 * B + lane * 16, reinterpret_cast<const unsigned char*>(scales) + lane * 16, 16);
        if (lane < 2 * g.zero_kind * groups)
          cp_async_16(slot + 512 * B + scale_bytes + lane * 16, zeros + lane * 16, 16);
      }
      if (++load_step == g.steps) load_step = 0, ++load_strip;
      if (++load_stage == g.stages) load_stage = 0;
    }
    cp_async_commit();
  };

  float sum[2][T][4];
#pragma unroll
  for (int nt = 0; nt < 2; ++nt)
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;

  // Where this lane's row of ldmatrix lies: `fours` takes one tile of tokens by four eights of k, `pairs` two by two.
  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t fours_row = row7 * 128, pairs_row = (row7 + 8 * (matrix >> 1)) * 128;
  const int fours_swizzle = matrix ^ row7, pairs_swizzle = (matrix & 1) ^ row7;

  // S of one step, whose activations lie at `stage`, into half `half` of `sums`.
  const auto sum_activations = [&](uint32_t stage, int half) {
    constexpr uint32_t kOne = XB ? twice(0x3f80) : twice(0x3c00);
    const uint32_t one[4] = {kOne, kOne, kOne, kOne};
    for (int t = wn; t < T; t += g.warps_n) {
      float c[4] = {0, 0, 0, 0};
      float* to = sums + ((half * g.warps_k + wk) * 4) * 8 * T + t * 8 + 2 * lane;
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        uint32_t r[4];
        ldmatrix_x4(r, stage + (2 * wk + (chunk >> 1)) * kSlab + t * 1024 + fours_row +
                           ((((chunk & 1) * 4) ^ fours_swizzle) << 4));
        mma_m16n8k16<XB>(c, one, r[0], r[1]);
        mma_m16n8k16<XB>(c, one, r[2], r[3]);
        if (chunk == 3 || g.groups_per_block == 4 || (chunk == 1 && g.groups_per_block == 2)) {
          const int group = g.groups_per_block == 4 ? chunk : g.groups_per_block == 2 ? chunk >> 1 : 0;
          if (lane < 4) *reinterpret_cast<float2*>(to + group * 8 * T) = make_float2(c[0], c[1]);
          c[0] = c[1] = c[2] = c[3] = 0;
        }
      }
    }
  };

  const int tile_vectors = g.warps_n * 2 * T * 32;  // float4s of a tile of the strip

  for (int s = 0; s < g.stages - 1; ++s) load(s < count);

  int strip = first / g.steps, step = first % g.steps, stage_index = 0;
  bool began_inside = step != 0;
  if (Cast::kSums) {
    cp_async_wait(g.stages - 2);
    __syncthreads();
    if (count > 0) sum_activations(ring, 0);
  }
  for (int at = 0; at < count; ++at) {
    cp_async_wait(g.stages - 3);
    __syncthreads();
    load(at + g.stages - 1 < count);
    if (Cast::kSums && at + 1 < count)
      sum_activations(ring + (stage_index + 1 == g.stages ? 0 : stage_index + 1) * stage_bytes, (at + 1) & 1);

    const int nb = strip * g.warps_n + wn, kb = step * g.warps_k + wk;
    if (nb < g.n_blocks && kb < g.k_blocks) {
      const uint32_t x_stage = ring + stage_index * stage_bytes;
      const uint32_t slot = x_stage + x_bytes + warp * slot_bytes;
      uint32_t q[4 * B];
#pragma unroll
      for (int v = 0; v < B; ++v) {
        const uint4 word = ld_shared_v4(slot + v * 512 + lane * 16);
        q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
      }
      float part[2][T][4];
      const uint32_t x_slabs = x_stage + 2 * wk * kSlab;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool begins = c == 0 || g.groups_per_block == 4 || (c == 2 && g.groups_per_block == 2);
        if (begins) {
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) part[0][t][i] = part[1][t][i] = 0;
        }
        uint32_t x1[4];
        if constexpr (T == 1)
          ldmatrix_x4(x1, x_slabs + (c >> 1) * kSlab + fours_row + ((((c & 1) * 4) ^ fours_swizzle) << 4));
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
          uint32_t a[2][4];
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[nt][i] = cast.pair(q + c * B, 4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1));
          uint32_t x[2 * T];
          if constexpr (T == 1) x[0] = x1[2 * ks], x[1] = x1[2 * ks + 1];
          else {
#pragma unroll
            for (int t = 0; t < T; t += 2) {
              uint32_t r[4];
              ldmatrix_x4(r, x_slabs + (c >> 1) * kSlab + t * 1024 + pairs_row +
                                 ((((c & 1) * 4 + ks * 2) ^ pairs_swizzle) << 4));
              x[2 * t] = r[0], x[2 * t + 1] = r[1], x[2 * t + 2] = r[2], x[2 * t + 3] = r[3];
            }
          }
#pragma unroll
          for (int t = 0; t < T; ++t) {
            if constexpr (XB == WB) {
              mma_m16n8k16<WB>(part[0][t], a[0], x[2 * t], x[2 * t + 1]);
              mma_m16n8k16<WB>(part[1][t], a[1], x[2 * t], x[2 * t + 1]);
            } else {
              uint32_t high[2], low[2];
              split_halves(x[2 * t], high[0], low[0]);
              split_halves(x[2 * t + 1], high[1], low[1]);
              mma_m16n8k16<WB>(part[0][t], a[0], high[0], high[1]);
              mma_m16n8k16<WB>(part[1][t], a[1], high[0], high[1]);
              mma_m16n8k16<WB>(part[0][t], a[0], low[0], low[1]);
              mma_m16n8k16<WB>(part[1][t], a[1], low[0], low[1]);
            }
          }
        }
        const int group = g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
        // A last block may hold fewer groups than others.
        if ((c == 3 || g.groups_per_block == 4 || (c == 1 && g.groups_per_block == 2)) &&
            (g.channel || kb * g.groups_per_block + group < g.groups)) {
          float scale[4], zero[4];
          group_factors(g, cast, slot + 512 * B + group * 64, slot + 512 * B + scale_bytes + group * 32 * g.zero_kind,
                        lane, scale, zero);
          add_group<T, Cast::kSums>(sum, part, scale, zero, sums + (((at & 1) * g.warps_k + wk) * 4 + group) * 8 * T,
                                    lane);
        }
      }
    }
    if (++stage_index == g.stages) stage_index = 0;

    const bool strip_ends = ++step == g.steps;
    if (strip_ends || at + 1 == count) {
      for (int half = g.warps_k / 2; half > 0; half /= 2) {
        __syncthreads();
        if (wk >= half && wk < 2 * half) {
          float4* to = exchange + ((wk - half) * g.warps_n + wn) * 2 * T * 32 + lane;
#pragma unroll
          for (int v = 0; v < 2 * T; ++v)
            to[v * 32] =
                make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
        }
        __syncthreads();
        if (wk < half) {
          const float4* from = exchange + (wk * g.warps_n + wn) * 2 * T * 32 + lane;
#pragma unroll
          for (int v = 0; v < 2 * T; ++v) {
            const float4 other = from[v * 32];
            sum[v / T][v % T][0] += other.x, sum[v / T][v % T][1] += other.y, sum[v / T][v % T][2] += other.z,
                sum[v / T][v % T][3] += other.w;
          }
        }
      }
      const bool alone = strip_ends && !began_inside;
      if (wk == 0) {
        const int own = strip == first / g.steps ? 0 : 1;
        float4* to = reinterpret_cast<float4*>(g.partial) +
                     (static_cast<long long>(blockIdx.x) * 2 + own) * tile_vectors + wn * 2 * T * 32 + lane;
#pragma unroll
        for (int v = 0; v < 2 * T; ++v) {
          const float4 value =
              make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
          if (alone) store_vector<T, XB>(g, strip, wn, v, lane, value);
          else __stcg(to + v * 32, value);
        }
      }
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;
      if (!alone) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(g.counters + 2 * strip, 1u);
      }
    }
    if (strip_ends) step = 0, ++strip, began_inside = false;
  }

  finish_shared<T, XB>(g, first, last, threadIdx.x, blockDim.x, [] { __syncthreads(); });
}

}  // namespace lpq::cuda

// What the casts make of chunks: q [chunks, bits] words -> pairs [chunks, 16]. For tests.
#define LPQ_CAST_PAIRS(name, bits, cast)                                                                    \
  extern "C" __global__ void lpq_cast_##name(const uint32_t* q, uint32_t* pairs, int chunks, int is_signed, \
                                             int exponent) {                                                \
    const lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16> cast_(is_signed != 0, exponent);                          \
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < chunks; c += gridDim.x * blockDim.x) {          \
      uint32_t words[bits];                                                                                 \
      for (int w = 0; w < bits; ++w) words[w] = q[c * bits + w];                                            \
      _Pragma("unroll") for (int i = 0; i < 16; ++i) pairs[c * 16 + i] = cast_.pair(words, i);              \
    }                                                                                                       \
  }

// One kernel for each number of token tiles. Blocks of up to 512 threads where 128 registers do.
#define LPQ_GEMM_PACKED_T(name, tiles, threads, bits, xb, cast)                                            \
  extern "C" __global__ void __launch_bounds__(threads, 1)                                                 \
      lpq_gemm_##name##_t##tiles(const lpq::cuda::GemmPackedArgs g) {                                      \
    lpq::cuda::gemm_packed<bits, tiles, xb, LPQ_WEIGHTS_BF16, lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16>>(g); \
  }
#define LPQ_GEMM_FEW(name, bits, xb, cast)        \
  LPQ_CAST_PAIRS(name, bits, cast)                \
  LPQ_GEMM_PACKED_T(name, 1, 512, bits, xb, cast) \
  LPQ_GEMM_PACKED_T(name, 2, 512, bits, xb, cast)
// More than 16 tokens, of what large.cuh has no kernel for.
#define LPQ_GEMM_PORTABLE(name, bits, xb, cast)   \
  LPQ_GEMM_FEW(name, bits, xb, cast)              \
  LPQ_GEMM_PACKED_T(name, 4, 256, bits, xb, cast) \
  LPQ_GEMM_PACKED_T(name, 8, 256, bits, xb, cast)

// Hopper's kernels bear names of their own, which are there only if the file was compiled for sm_90a.
#if LPQ_HAS_WGMMA
#define LPQ_GEMM_HOPPER_T(name, tiles, bits, bf, cast)                                                           \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kHopperThreads<tiles>, 1) lpq_gemm_##name##_h##tiles(  \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::PackedMaps maps) { \
    lpq::cuda::gemm_packed_hopper<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, maps);                          \
  }
#define LPQ_GEMM_HOPPER(name, bits, bf, cast) \
  LPQ_GEMM_HOPPER_T(name, 1, bits, bf, cast)  \
  LPQ_GEMM_HOPPER_T(name, 2, bits, bf, cast)  \
  LPQ_GEMM_HOPPER_T(name, 4, bits, bf, cast)  \
  LPQ_GEMM_HOPPER_T(name, 8, bits, bf, cast)
// Not of every type yet: those that were checked on a device. _o: one group a packed block; _g: any.
#define LPQ_GEMM_WIDE_T(name, tiles, bits, bf, cast, kind, one)                                                     \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kWideThreads<tiles>, 1) lpq_gemm_##name##_m##tiles##kind( \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::WideArgs a,           \
      const __grid_constant__ lpq::cuda::PackedMaps maps) {                                                         \
    lpq::cuda::gemm_wide<bits, tiles, one, bf, lpq::cuda::cast<bits, bf>>(g, a, maps);                              \
  }
#define LPQ_GEMM_WIDE(name, bits, bf, cast)           \
  LPQ_GEMM_WIDE_T(name, 2, bits, bf, cast, _o, true)  \
  LPQ_GEMM_WIDE_T(name, 4, bits, bf, cast, _o, true)  \
  LPQ_GEMM_WIDE_T(name, 8, bits, bf, cast, _o, true)  \
  LPQ_GEMM_WIDE_T(name, 16, bits, bf, cast, _o, true) \
  LPQ_GEMM_WIDE_T(name, 2, bits, bf, cast, _g, false) \
  LPQ_GEMM_WIDE_T(name, 4, bits, bf, cast, _g, false) \
  LPQ_GEMM_WIDE_T(name, 8, bits, bf, cast, _g, false) \
  LPQ_GEMM_WIDE_T(name, 16, bits, bf, cast, _g, false)
// s: lean; x: all else.
#define LPQ_GEMM_STREAM_T(name, letter, tiles, bits, lean, bf, cast)                                               \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kStreamWarps * 32, 1) lpq_gemm_##name##_##letter##tiles( \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::StreamArgs a) {      \
    lpq::cuda::gemm_stream<bits, tiles, lpq::cuda::kStreamWarps, lean, bf, lpq::cuda::cast<bits, bf>>(g, a);       \
  }
// f16 activations in two parts of bf16.
#define LPQ_GEMM_STREAM_SPLIT_T(name, letter, tiles, bits, lean, cast)                                                 \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kStreamWarps * 32, 1) lpq_gemm_##name##_##letter##tiles(     \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::StreamArgs a) {          \
    lpq::cuda::gemm_stream<bits, tiles, lpq::cuda::kStreamWarps, lean, true, lpq::cuda::cast<bits, true>, true>(g, a); \
  }
#define LPQ_GEMM_STREAM_SPLIT(name, bits, cast)          \
  LPQ_GEMM_STREAM_SPLIT_T(name, s, 1, bits, true, cast)  \
  LPQ_GEMM_STREAM_SPLIT_T(name, s, 2, bits, true, cast)  \
  LPQ_GEMM_STREAM_SPLIT_T(name, x, 1, bits, false, cast) \
  LPQ_GEMM_STREAM_SPLIT_T(name, x, 2, bits, false, cast)
#define LPQ_GEMM_STREAM(name, bits, bf, cast)          \
  LPQ_GEMM_STREAM_T(name, s, 1, bits, true, bf, cast)  \
  LPQ_GEMM_STREAM_T(name, s, 2, bits, true, bf, cast)  \
  LPQ_GEMM_STREAM_T(name, x, 1, bits, false, bf, cast) \
  LPQ_GEMM_STREAM_T(name, x, 2, bits, false, bf, cast)
#else
#define LPQ_GEMM_HOPPER(name, bits, bf, cast)
#define LPQ_GEMM_WIDE(name, bits, bf, cast)
#define LPQ_GEMM_WIDE_T(name, tiles, bits, bf, cast, kind, one)
#define LPQ_GEMM_STREAM(name, bits, bf, cast)
#define LPQ_GEMM_STREAM_SPLIT(name, bits, cast)
#endif
// Built for sm_90a alone, the portable ones would never run.
#if !LPQ_PORTABLE_RUNS
#define LPQ_GEMM_PACKED(name, bits, bf, cast) \
  LPQ_CAST_PAIRS(name, bits, cast)            \
  LPQ_GEMM_HOPPER(name, bits, bf, cast)       \
  LPQ_GEMM_STREAM(name, bits, bf, cast)
#else
#define LPQ_GEMM_PACKED(name, bits, bf, cast) \
  LPQ_GEMM_FEW(name, bits, bf, cast)          \
  LPQ_GEMM_HOPPER(name, bits, bf, cast)       \
  LPQ_GEMM_STREAM(name, bits, bf, cast)
#endif
