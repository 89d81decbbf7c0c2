// The same product as packed.cuh, cut and added up in the same way, with what Hopper has for it: wgmma with the
// weights in registers (the packed order is that of its operand A too) and the activations behind a descriptor; the
// bulk engine, which one warp of each block feeds, so that those that multiply spend no instruction on loads; three
// more warps that sum activations. A step is one box of each tensor, three or four instructions to the engine, each of
// which costs about a hundred cycles. Barriers count bytes (full), warps that are done with a stage (empty), and sums
// (summed).
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

constexpr int kMostStages = 16;
// Warps that multiply: 16 up to 32 tokens, 8 beyond; and four that feed them.
template <int T>
constexpr int kHopperThreads = (T <= 4 ? 512 : 256) + 128;

#if LPQ_HAS_WGMMA

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_packed_hopper(const GemmPackedArgs& g, const PackedMaps& maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kSlab = 8 * T * 128;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = g.warps_n * g.warps_k;  // that multiply; a multiple of four
  // A stage: activations [2 warps_k][8 T tokens][128 bytes], weights [warps_n][warps_k][512 B], scales and zeros
  // [warps_n][groups of the step][32].
  const int step_groups = g.channel ? 1 : g.groups_per_block * g.warps_k;
  const int weights_at = 2 * g.warps_k * kSlab, scales_at = weights_at + warps * 512 * B,
            zeros_at = scales_at + g.warps_n * step_groups * 64;
  const int used_bytes = zeros_at + g.warps_n * step_groups * 32 * g.zero_kind,
            stage_bytes = (used_bytes + 1023) & ~1023;
  const uint32_t full = shared_address(shared), empty = full + 8 * kMostStages, summed = empty + 8 * kMostStages,
                 ring = full + 1024;
  float* const sums =
      reinterpret_cast<float*>(shared + 1024 + g.stages * stage_bytes);  // [stages][warps_k][4 groups][8 T]
  float4* const exchange = reinterpret_cast<float4*>(sums + g.stages * g.warps_k * 32 * T);

  const long long total = static_cast<long long>(g.strips) * g.steps;
  const int first = static_cast<int>(blockIdx.x * total / gridDim.x),
            last = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, warps + (Cast::kSums ? 3 : 0));
      mbarrier_init(summed + 8 * s, 3);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    int strip = first / g.steps, step = first % g.steps, stage = 0, parity = 0;
    if (warp == warps) {
      if (lane == 0)
        for (int at = first; at < last; ++at) {
          const uint32_t barrier = full + 8 * stage, to = ring + stage * stage_bytes;
          const int nb = strip * g.warps_n, kb = step * g.warps_k, group = g.channel ? 0 : kb * g.groups_per_block;
          mbarrier_wait_parity(empty + 8 * stage, parity ^ 1);
          mbarrier_arrive_expect_tx(barrier, used_bytes);  // boxes are whole beyond the tensors too, with zeros
          tma_load_3d_evict_first(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
          tma_load_3d(to, &maps.x, 0, 0, kb * 2, barrier);
          tma_load_3d(to + scales_at, &maps.scales, 0, group, nb, barrier);
          if (g.zero_kind) tma_load_3d(to + zeros_at, &maps.zeros, 0, group, nb, barrier);
          if (++step == g.steps) step = 0, ++strip;
          if (++stage == g.stages) stage = 0, parity ^= 1;
        }
    } else if (Cast::kSums) {
      // Eight lanes take the eight chunks of a token's 64 k, so four tokens at once; not on the tensor core, which is
      // busy.
      const int w = warp - warps - 1, items = g.warps_k * 2 * T, eighth = lane & 7;
      const auto eight = [&](uint32_t slab, int row) {
        const uint4 v = ld_shared_v4(slab + row * 128 + ((eighth ^ (row & 7)) << 4));
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
        float low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          low[i] = BF ? __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u)
                      : __low2float(*reinterpret_cast<const __half2*>(&pairs[i])) +
                            __high2float(*reinterpret_cast<const __half2*>(&pairs[i]));
        return (low[0] + low[1]) + (low[2] + low[3]);
      };
      const auto with = [](float v, int distance) { return v + __shfl_xor_sync(0xffffffffu, v, distance); };
      for (int at = first; at < last; ++at) {
        mbarrier_wait_parity(full + 8 * stage, parity);
#pragma unroll 2
        for (int i = w; i < items; i += 3) {
          const int wk = i / (2 * T), row = i % (2 * T) * 4 + (lane >> 3);
          const uint32_t slab = ring + stage * stage_bytes + 2 * wk * kSlab;
          float front = eight(slab, row), back = eight(slab + kSlab, row);
          float* to = sums + ((stage * g.warps_k + wk) * 4) * 8 * T + row;
          if (g.groups_per_block == 1) {
            front = with(with(with(front + back, 1), 2), 4);
            if (eighth == 0) *to = front;
          } else {
            front = with(with(front, 1), 2), back = with(with(back, 1), 2);
            if (g.groups_per_block == 4) {
              if ((eighth & 3) == 0) to[(eighth >> 2) * 8 * T] = front, to[(2 + (eighth >> 2)) * 8 * T] = back;
            } else {
              front = with(front, 4), back = with(back, 4);
              if (eighth == 0) to[0] = front, to[8 * T] = back;
            }
          }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(summed + 8 * stage), mbarrier_arrive(empty + 8 * stage);
        if (++stage == g.stages) stage = 0, parity ^= 1;
      }
    }
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const int wn = warp % g.warps_n, wk = warp / g.warps_n;
  const int threads = warps * 32, warp_slot = wn * g.warps_k + wk;
  const Cast cast(g.is_signed != 0, g.exponent);
  float sum[2][T][4];
#pragma unroll
  for (int nt = 0; nt < 2; ++nt)
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;

  const int tile_vectors = g.warps_n * 2 * T * 32;
  int strip = first / g.steps, step = first % g.steps, stage = 0, parity = 0;
  bool began_inside = step != 0;
  for (int at = first; at < last; ++at) {
    const uint32_t here = ring + stage * stage_bytes;
    mbarrier_wait_parity(full + 8 * stage, parity);
    // A warpgroup multiplies together, whether all of its rows exist or not.
    const int kb = step * g.warps_k + wk;
    if (kb < g.k_blocks) {
      const uint32_t words = here + weights_at + warp_slot * 512 * B + lane * 16;
      uint32_t q[4 * B];
      float part[2][T][4];
      const uint64_t x0 = wgmma_descriptor(here + 2 * wk * kSlab);
      bool awaits_sums = Cast::kSums;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool begins = c == 0 || g.groups_per_block == 4 || (c == 2 && g.groups_per_block == 2);
        // The vectors that the next chunk is the first to need (and, to begin with, this one).
#pragma unroll
        for (int v = 0; v < B; ++v)
          if (v >= (c == 0 ? 0 : ((c + 1) * B + 3) / 4) && v < ((c + 2) * B + 3) / 4) {
            const uint4 word = ld_shared_v4(words + v * 512);
            q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
          }
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
          uint32_t a[2][4];
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[nt][i] = cast.pair(q + c * B, 4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1));
          const uint64_t x = x0 + (c >> 1) * (kSlab >> 4) + (c & 1) * 4 + ks * 2;
          wgmma_fence();
          wgmma_k16<BF, T>(part[0], a[0], x, ks != 0 || !begins);
          wgmma_k16<BF, T>(part[1], a[1], x, ks != 0 || !begins);
          wgmma_commit();
          wgmma_wait<1>();  // the registers of the products before are free
        }
        const int group = g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
        if (c == 3 || g.groups_per_block == 4 || (c == 1 && g.groups_per_block == 2)) {
          if (awaits_sums) mbarrier_wait_parity(summed + 8 * stage, parity), awaits_sums = false;
          wgmma_wait<0>();
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(part[0][t][i]), "+f"(part[1][t][i])::"memory");
          // A last block may hold fewer groups than others.
          if (g.channel || kb * g.groups_per_block + group < g.groups) {
            float scale[4], zero[4];
            const int at_group = wn * step_groups + (g.channel ? 0 : wk * g.groups_per_block + group);
            group_factors(g, cast, here + scales_at + at_group * 64, here + zeros_at + at_group * 32 * g.zero_kind,
                          lane, scale, zero);
            add_group<T, Cast::kSums>(sum, part, scale, zero, sums + ((stage * g.warps_k + wk) * 4 + group) * 8 * T,
                                      lane);
          }
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    if (++stage == g.stages) stage = 0, parity ^= 1;

    const bool strip_ends = ++step == g.steps;
    if (strip_ends || at + 1 == last) {
      for (int half = g.warps_k / 2; half > 0; half /= 2) {
        bar_sync(1, threads);
        if (wk >= half && wk < 2 * half) {
          float4* to = exchange + ((wk - half) * g.warps_n + wn) * 2 * T * 32 + lane;
#pragma unroll
          for (int v = 0; v < 2 * T; ++v)
            to[v * 32] =
                make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
        }
        bar_sync(1, threads);
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
          if (alone) store_vector<T, BF>(g, strip, wn, v, lane, value);
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
        bar_sync(1, threads);
        if (threadIdx.x == 0) atomicAdd(g.counters + 2 * strip, 1u);
      }
    }
    if (strip_ends) step = 0, ++strip, began_inside = false;
  }
  finish_shared<T, BF>(g, first, last, threadIdx.x, threads, [threads] { bar_sync(1, threads); });
}

#endif

}  // namespace lpq::cuda
