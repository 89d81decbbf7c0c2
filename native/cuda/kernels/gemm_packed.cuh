// y[m][n] = sum_k x[m][k] (decode(q[n][k]) - zero) scale [+ bias], weights in the packed format (docs/kernels.md), at most
// 8 * T tokens. The weights are operand A of mma.m16n8k16 (rows are n), the activations operand B, so tokens come in eights.
//
// A block owns a run of steps; a step is warps_n x warps_k blocks of 32 n x 128 k, one a warp, and steps run along K through
// a strip of 32 warps_n columns, then into the next strip: every multiprocessor streams the same number of bytes whatever
// the shape. Weights, scales and zero points reach a warp through a ring in shared memory of its own, activations through
// one of the block. Codes are multiplied as they lie (cast.cuh); scales, offsets and zero points come in fp32, once a group:
//   sum_k x (gain code + offset - zero') = P - zero' S,   S = sum_k x by a product with ones.
// At a strip's end the warps along K add up in pairs; strips that several blocks share go through `partial`, and each
// sharer adds up a slice of the tile in the order of the blocks. No sum depends on timing.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels/cast.cuh"
#include "cuda/kernels/gemm_packed.h"
#include "cuda/kernels/mma.cuh"

namespace lpq::cuda {

__device__ __forceinline__ float to_float(uint16_t bits, bool bf16) {
  return bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : __half2float(__ushort_as_half(bits));
}

template <bool BF>
__device__ __forceinline__ uint16_t from_float(float v) {
  return BF ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
}

// A pair of f16 as the sum of two pairs of bf16, exactly (11 bits are 8 and 3).
__device__ __forceinline__ void split_halves(uint32_t pair, uint32_t& high, uint32_t& low) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  const uint32_t a = __float_as_uint(v.x) & 0xffff0000u, b = __float_as_uint(v.y) & 0xffff0000u;
  high = __byte_perm(a, b, 0x7632);
  low = __byte_perm(__float_as_uint(v.x - __uint_as_float(a)), __float_as_uint(v.y - __uint_as_float(b)), 0x7632);
}

// XB: activations, outputs and bias are bf16, else f16. Cast: IntCast<B, WB> or FloatCast<B, WB>, WB: multiplied as bf16.
template <int B, int T, bool XB, bool WB, class Cast>
__device__ __forceinline__ void gemm_packed(const GemmPackedArgs& g) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int wn = warp % g.warps_n, wk = warp / g.warps_n, warps = g.warps_n * g.warps_k;
  const int row_bytes = g.warps_k * kBlockK * 2;
  const int scale_bytes = 64 * g.groups_per_block;
  const int zero_bytes = g.zero_kind == 0 ? 0 : g.zero_kind * scale_bytes / 2;
  const int slot_bytes = 512 * B + scale_bytes + zero_bytes;
  const int x_bytes = 8 * T * row_bytes;
  const int stage_bytes = x_bytes + warps * slot_bytes;
  const uint32_t barriers = shared_address(shared) + warp * g.stages * 8;
  const uint32_t ring = shared_address(shared) + 1024;
  float4* const exchange = reinterpret_cast<float4*>(shared + 1024 + g.stages * stage_bytes);

  const long long total = static_cast<long long>(g.strips) * g.steps;
  const int first = static_cast<int>(blockIdx.x * total / gridDim.x), last = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);
  const int count = last - first;

  const Cast cast(g.is_signed != 0, g.exponent);

#if LPQ_BULK
  if (lane == 0)
    for (int s = 0; s < g.stages; ++s) barrier_init(barriers + s * 8);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
#endif

  // What a step loads; position: of the step in the block's run.
  int load_strip = first / g.steps, load_step = first % g.steps, load_stage = 0;
  const auto load = [&](bool any) {
    if (any) {
      const uint32_t stage = ring + load_stage * stage_bytes;
      const int k0 = load_step * g.warps_k * kBlockK;
      const int chunks = row_bytes / 16;
      const int shift = 31 - __clz(chunks);
      for (int i = threadIdx.x; i < 8 * T * chunks; i += blockDim.x) {
        const int row = i >> shift, chunk = i & (chunks - 1), column = k0 + chunk * 8;
        const bool inside = row < g.m && column < g.k;
        copy16_async(stage + row * row_bytes + ((chunk ^ (row & 7)) << 4), g.x + (inside ? static_cast<long long>(row) * g.k + column : 0), inside ? 16 : 0);
      }
      const int nb = load_strip * g.warps_n + wn, kb = load_step * g.warps_k + wk;
      if (nb >= g.n_blocks || kb >= g.k_blocks) {
#if LPQ_BULK
        if (lane == 0) barrier_expect(barriers + load_stage * 8, 0);  // the phases go on
#endif
      } else {
        const uint32_t slot = stage + x_bytes + warp * slot_bytes;
        const unsigned char* from = g.weights + (static_cast<long long>(nb) * g.k_blocks + kb) * (512 * B);
        const int group = g.channel ? 0 : kb * g.groups_per_block;
        const int groups = min(g.groups_per_block, g.groups - group);
        const long long at = (static_cast<long long>(nb) * g.groups + group) * 32;
        const uint16_t* scales = g.scales + at;
        const unsigned char* zeros = g.zeros + at * g.zero_kind;
#if LPQ_BULK
        if (lane == 0) {
          const uint32_t barrier = barriers + load_stage * 8;
          barrier_expect(barrier, 512 * B + 64 * groups + 32 * g.zero_kind * groups);
          copy_bulk_once(slot, from, 512 * B, barrier);
          copy_bulk(slot + 512 * B, scales, 64 * groups, barrier);
          if (g.zero_kind) copy_bulk(slot + 512 * B + scale_bytes, zeros, 32 * g.zero_kind * groups, barrier);
        }
#else
#pragma unroll
        for (int v = 0; v < B; ++v) copy16_async(slot + v * 512 + lane * 16, from + v * 512 + lane * 16, 16);
        if (lane < 4 * groups) copy16_async(slot + 512 * B + lane * 16, reinterpret_cast<const unsigned char*>(scales) + lane * 16, 16);
        if (lane < 2 * g.zero_kind * groups) copy16_async(slot + 512 * B + scale_bytes + lane * 16, zeros + lane * 16, 16);
#endif
      }
      if (++load_step == g.steps) load_step = 0, ++load_strip;
      if (++load_stage == g.stages) load_stage = 0;
    }
    commit_copies();
  };

  float sum[2][T][4];
#pragma unroll
  for (int nt = 0; nt < 2; ++nt)
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;

  // Where this lane's row of ldmatrix lies: T = 1 takes four eights of k, else two tiles of tokens by two eights of k.
  const int row7 = lane & 7, matrix = lane >> 3;
  const int eight = T == 1 ? matrix : matrix & 1;
  const uint32_t x_row = (T == 1 ? row7 : row7 + 8 * (matrix >> 1)) * row_bytes + wk * 256;
  const int swizzle = eight ^ row7;

  const auto store = [&](int strip, int tile, int v, int from_lane, float4 value) {
    const int nt = v / T, t = v % T;
    const int n0 = (strip * g.warps_n + tile) * 32 + nt * 16 + (from_lane >> 2), m0 = t * 8 + (from_lane & 3) * 2;
    const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = n0 + (i >> 1) * 8, m = m0 + (i & 1);
      if (n < g.n && m < g.m) g.y[static_cast<long long>(m) * g.n + n] = from_float<XB>(values[i] + (g.bias ? to_float(g.bias[n], XB) : 0.0f));
    }
  };
  const int tile_vectors = g.warps_n * 2 * T * 32;  // float4s of a tile of the strip

  for (int s = 0; s < g.stages - 1; ++s) load(s < count);

  int strip = first / g.steps, step = first % g.steps, stage_index = 0, parity = 0;
  bool began_inside = step != 0;
  for (int at = 0; at < count; ++at) {
    wait_copies(g.stages - 2);
    __syncthreads();
    load(at + g.stages - 1 < count);

    const int nb = strip * g.warps_n + wn, kb = step * g.warps_k + wk;
    if (nb < g.n_blocks && kb < g.k_blocks) {
      const uint32_t x_stage = ring + stage_index * stage_bytes;
      const uint32_t slot = x_stage + x_bytes + warp * slot_bytes;
#if LPQ_BULK
      barrier_wait(barriers + stage_index * 8, parity);
#endif
      uint32_t q[4 * B];
#pragma unroll
      for (int v = 0; v < B; ++v) {
        const uint4 word = load_shared16(slot + v * 512 + lane * 16);
        q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
      }
      float part[2][T][4], ones[T][4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool begins = c == 0 || g.groups_per_block == 4 || (c == 2 && g.groups_per_block == 2);
        if (begins) {
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) part[0][t][i] = part[1][t][i] = ones[t][i] = 0;
        }
        uint32_t x1[4];
        if constexpr (T == 1) load_matrices(x1, x_stage + x_row + (c >> 1) * 128 + ((((c & 1) * 4) ^ swizzle) << 4));
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
              load_matrices(r, x_stage + x_row + t * 8 * row_bytes + (c >> 1) * 128 + ((((c & 1) * 4 + ks * 2) ^ swizzle) << 4));
              x[2 * t] = r[0], x[2 * t + 1] = r[1], x[2 * t + 2] = r[2], x[2 * t + 3] = r[3];
            }
          }
          const uint32_t one[4] = {XB ? twice(0x3f80) : twice(0x3c00), XB ? twice(0x3f80) : twice(0x3c00), XB ? twice(0x3f80) : twice(0x3c00),
                                   XB ? twice(0x3f80) : twice(0x3c00)};
#pragma unroll
          for (int t = 0; t < T; ++t) {
            if constexpr (XB == WB) {
              multiply<WB>(part[0][t], a[0], x[2 * t], x[2 * t + 1]);
              multiply<WB>(part[1][t], a[1], x[2 * t], x[2 * t + 1]);
            } else {
              uint32_t high[2], low[2];
              split_halves(x[2 * t], high[0], low[0]);
              split_halves(x[2 * t + 1], high[1], low[1]);
              multiply<WB>(part[0][t], a[0], high[0], high[1]);
              multiply<WB>(part[1][t], a[1], high[0], high[1]);
              multiply<WB>(part[0][t], a[0], low[0], low[1]);
              multiply<WB>(part[1][t], a[1], low[0], low[1]);
            }
            if constexpr (Cast::kSums) multiply<XB>(ones[t], one, x[2 * t], x[2 * t + 1]);
          }
        }
        const int group = g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
        // A last block may hold fewer groups than others.
        if ((c == 3 || g.groups_per_block == 4 || (c == 1 && g.groups_per_block == 2)) && (g.channel || kb * g.groups_per_block + group < g.groups)) {
          const uint32_t at_scales = slot + 512 * B + group * 64 + (lane >> 2) * 8;
          uint32_t pairs[2], zero_pairs[2];
          asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(at_scales) : "memory");
          if (Cast::kSums && g.zero_kind == 2)
            asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(zero_pairs[0]), "=r"(zero_pairs[1]) : "r"(at_scales + scale_bytes) : "memory");
          else if (Cast::kSums && g.zero_kind == 1)
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(zero_pairs[0]) : "r"(slot + 512 * B + scale_bytes + group * 32 + (lane >> 2) * 4) : "memory");
          float scale[4], zero[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const float s = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), g.scale_bf16 != 0);
            if constexpr (Cast::kSums) {
              scale[r] = s * Cast::ungain(r);
              float z = g.zero;
              if (g.zero_kind == 2) z += to_float(static_cast<uint16_t>(zero_pairs[r >> 1] >> 16 * (r & 1)), false);
              if (g.zero_kind == 1) z += static_cast<float>((zero_pairs[0] >> 8 * r) & 255);
              zero[r] = -fmaf(z, Cast::gain(r), Cast::bias());
            } else {
              scale[r] = s * cast.unpower;
            }
          }
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int r = 2 * nt + (i >> 1);
                const float p = Cast::kSums ? fmaf(zero[r], ones[t][i], part[nt][t][i]) : part[nt][t][i];
                sum[nt][t][i] = fmaf(scale[r], p, sum[nt][t][i]);
              }
        }
      }
    }
    if (++stage_index == g.stages) stage_index = 0, parity ^= 1;

    const bool strip_ends = ++step == g.steps;
    if (strip_ends || at + 1 == count) {
      for (int half = g.warps_k / 2; half > 0; half /= 2) {
        __syncthreads();
        if (wk >= half && wk < 2 * half) {
          float4* to = exchange + ((wk - half) * g.warps_n + wn) * 2 * T * 32 + lane;
#pragma unroll
          for (int v = 0; v < 2 * T; ++v) to[v * 32] = make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
        }
        __syncthreads();
        if (wk < half) {
          const float4* from = exchange + (wk * g.warps_n + wn) * 2 * T * 32 + lane;
#pragma unroll
          for (int v = 0; v < 2 * T; ++v) {
            const float4 other = from[v * 32];
            sum[v / T][v % T][0] += other.x, sum[v / T][v % T][1] += other.y, sum[v / T][v % T][2] += other.z, sum[v / T][v % T][3] += other.w;
          }
        }
      }
      const bool alone = strip_ends && !began_inside;
      if (wk == 0) {
        const int own = strip == first / g.steps ? 0 : 1;
        float4* to = reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(blockIdx.x) * 2 + own) * tile_vectors + wn * 2 * T * 32 + lane;
#pragma unroll
        for (int v = 0; v < 2 * T; ++v) {
          const float4 value = make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
          if (alone) store(strip, wn, v, lane, value);
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

  // The strips at both ends of the run, if others share them.
  const int ends[2] = {first / g.steps, (last - 1) / g.steps};
  for (int e = 0; e < (ends[0] == ends[1] ? 1 : 2) && count > 0; ++e) {
    const long long begin = static_cast<long long>(ends[e]) * g.steps, end = begin + g.steps;
    const int from = static_cast<int>(((begin + 1) * gridDim.x - 1) / total), to = static_cast<int>((end * gridDim.x - 1) / total);
    if (from == to) continue;
    const int sharers = to - from + 1, rank = static_cast<int>(blockIdx.x) - from;
    if (threadIdx.x == 0) {
      unsigned seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(g.counters + 2 * ends[e]) : "memory");
      while (seen < static_cast<unsigned>(sharers));
    }
    __syncthreads();
    const int slice_begin = static_cast<int>(static_cast<long long>(tile_vectors) * rank / sharers);
    const int slice_end = static_cast<int>(static_cast<long long>(tile_vectors) * (rank + 1) / sharers);
    for (int f = slice_begin + threadIdx.x; f < slice_end; f += blockDim.x) {
      float4 value = make_float4(0, 0, 0, 0);
      for (int c = from; c <= to; ++c) {
        const int own = static_cast<int>(c * total / gridDim.x) / g.steps == ends[e] ? 0 : 1;
        const float4 part = __ldcg(reinterpret_cast<const float4*>(g.partial) + (static_cast<long long>(c) * 2 + own) * tile_vectors + f);
        value.x += part.x, value.y += part.y, value.z += part.z, value.w += part.w;
      }
      store(ends[e], f / (2 * T * 32), f / 32 % (2 * T), f % 32, value);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      // The last to be done leaves both counters at 0 for the next launch.
      if (atomicAdd(g.counters + 2 * ends[e] + 1, 1u) + 1 == static_cast<unsigned>(sharers)) g.counters[2 * ends[e]] = g.counters[2 * ends[e] + 1] = 0;
    }
  }
}

}  // namespace lpq::cuda

// What the casts make of chunks: q [chunks, bits] words -> pairs [chunks, 16]. For tests.
#define LPQ_CAST_PAIRS(name, bits, cast)                                                                                            \
  extern "C" __global__ void lpq_cast_##name(const uint32_t* q, uint32_t* pairs, int chunks, int is_signed, int exponent) {         \
    const lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16> cast_(is_signed != 0, exponent);                                                  \
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < chunks; c += gridDim.x * blockDim.x) {                                  \
      uint32_t words[bits];                                                                                                         \
      for (int w = 0; w < bits; ++w) words[w] = q[c * bits + w];                                                                    \
      _Pragma("unroll") for (int i = 0; i < 16; ++i) pairs[c * 16 + i] = cast_.pair(words, i);                                       \
    }                                                                                                                               \
  }

// One kernel for each number of token tiles. Blocks of up to 512 threads where 128 registers do.
#define LPQ_GEMM_PACKED_T(name, tiles, threads, bits, xb, cast)                                                                     \
  extern "C" __global__ void __launch_bounds__(threads, 1) lpq_gemm_##name##_t##tiles(const lpq::cuda::GemmPackedArgs g) {          \
    lpq::cuda::gemm_packed<bits, tiles, xb, LPQ_WEIGHTS_BF16, lpq::cuda::cast<bits, LPQ_WEIGHTS_BF16>>(g);                          \
  }
#define LPQ_GEMM_PACKED(name, bits, xb, cast)        \
  LPQ_CAST_PAIRS(name, bits, cast)                   \
  LPQ_GEMM_PACKED_T(name, 1, 512, bits, xb, cast)    \
  LPQ_GEMM_PACKED_T(name, 2, 512, bits, xb, cast)    \
  LPQ_GEMM_PACKED_T(name, 4, 256, bits, xb, cast)    \
  LPQ_GEMM_PACKED_T(name, 8, 256, bits, xb, cast)
