// The same product as packed.cuh for more than a few tokens, on Hopper's wgmma (weights in registers: the packed
// order is that of its operand A; activations behind a descriptor):
//  - a strip is as wide as registers allow, up to 512 rows, because every block reads the activations of its strips
//    again;
//  - zero points leave in the pairs, where a half or bf16 holds code - zero exactly: one addition a pair, no sums of
//    activations. The rest (fractions, bf16 with zero points of groups) goes through sums that an earlier kernel made;
//  - scales are applied to the sums of a group, so products stay exact;
//  - every block gets an equal run of steps (a packed block of K of a strip and tile of tokens), along K first. Sums of
//    an item that several blocks share go through the workspace and are added up by all of them, a share each, in the
//    order of K;
//  - results leave in rows of 32 columns, sixteen bytes a lane.
// One warp feeds a ring in shared memory through the bulk engine, a step a stage; the others multiply, each 32 rows of
// one packed block (two of them one after the other for up to 64 tokens). The code of a step has to stay small: two or
// four warpgroups at different places of it share one instruction cache.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

constexpr int kWideStages = 16;  // at most
// Warps that multiply, packed blocks that each has, and 16-row halves of a block that multiply at once.
template <int T>
constexpr int kWideWarps = T <= 4 ? 16 : 8;
template <int T>
constexpr int kWideBlocks = T == 8 ? 2 : 1;
template <int T>
constexpr int kWideHalves = T <= 4 ? 2 : 1;
template <int T>
constexpr int kWideThreads = 32 * kWideWarps<T> + 128;

#if LPQ_HAS_WGMMA

// Eight tokens of a packed block's 32 rows, as the accumulators hold them, to y; `staging`: 512 bytes of the warp's
// own.
template <bool BF>
__device__ __forceinline__ void store_eight(const GemmPackedArgs& g, bool vectors, int block, int token0,
                                            const float (&v)[2][4], uint32_t staging, int lane) {
  uint32_t r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = block * 32 + 8 * i + (lane >> 2);
    const float bias = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
    r[i] = from_float<BF>(v[i >> 1][2 * (i & 1)] + bias) |
           static_cast<uint32_t>(from_float<BF>(v[i >> 1][2 * (i & 1) + 1] + bias)) << 16;
  }
  // Token j's 64 bytes are four chunks, xor-ed with j / 2: neither side meets a bank twice.
  const int row = lane & 7;
  __syncwarp();
  stmatrix_x4_trans(staging + row * 64 + (((lane >> 3) ^ (row >> 1)) << 4), r);
  __syncwarp();
  const int token = lane >> 2, chunk = lane & 3, n = block * 32 + 8 * chunk, m = token0 + token;
  const uint4 out = ld_shared_v4(staging + token * 64 + ((chunk ^ (token >> 1)) << 4));
  if (m >= g.m) return;
  uint16_t* const to = g.y + static_cast<long long>(m) * g.n + n;
  if (vectors && n + 8 <= g.n) {
    *reinterpret_cast<uint4*>(to) = out;
  } else {
    const uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (n + i < g.n) to[i] = static_cast<uint16_t>(words[i >> 1] >> 16 * (i & 1));
  }
}

// The words of chunk `c` of a lane. `words`: where the lane's vectors of the block begin.
template <int B>
__device__ __forceinline__ void load_chunk(uint32_t (&q)[B], uint32_t words, int c) {
  const auto at = [&](int w) { return words + ((c * B + w) >> 2) * 512 + ((c * B + w) & 3) * 4; };
  if constexpr (B % 4 == 0) {
#pragma unroll
    for (int v = 0; v < B; v += 4) {
      const uint4 word = ld_shared_v4(at(v));
      q[v] = word.x, q[v + 1] = word.y, q[v + 2] = word.z, q[v + 3] = word.w;
    }
  } else if constexpr (B % 2 == 0) {
#pragma unroll
    for (int v = 0; v < B; v += 2) ld_shared_v2(q[v], q[v + 1], at(v));
  } else {
#pragma unroll
    for (int v = 0; v < B; ++v) q[v] = ld_shared(at(v));
  }
}

// One: one group a packed block (or one scale a row), and zero points that leave in the pairs; else anything.
template <int B, int T, bool One, bool BF, class Cast>
__device__ __forceinline__ void gemm_wide(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps) {
  constexpr int H = kWideBlocks<T>, P = kWideHalves<T>;
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int per_block = One ? 1 : g.groups_per_block;       // groups
  const long long total = static_cast<long long>(a.items) * g.k_blocks;
  const int first = static_cast<int>(blockIdx.x * total / gridDim.x),
            last = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);

  // A stage: activations [2][8 T tokens][128 bytes], weights [width][512 B], scales and zeros [width][groups][32].
  const int weights_at = 2 * kSlab, scales_at = weights_at + a.width * 512 * B, scale_bytes = a.width * per_block * 64;
  const int zeros_at = scales_at + ((scale_bytes + 127) & ~127), zero_bytes = a.width * per_block * 32 * g.zero_kind;
  const int stage_bytes = (zeros_at + zero_bytes + 1023) & ~1023;
  const uint32_t full = shared_address(dynamic_shared()), empty = full + 8 * kWideStages, ring = full + 1024;

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, warps);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps && lane == 0) {
      const int bytes = scales_at + scale_bytes + zero_bytes;
      int stage = 0, parity = 0, begun = 0;
      const auto weights = [&](int item, int kb, int to_stage) {
        const uint32_t barrier = full + 8 * to_stage, to = ring + to_stage * stage_bytes;
        const int nb = item / a.token_tiles * a.width, group = g.channel ? 0 : kb * per_block;
        mbarrier_arrive_expect_tx(barrier, bytes);  // boxes are whole beyond the tensors too, with zeros
        if (a.token_tiles == 1) tma_load_3d_evict_first(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
        else tma_load_3d(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
        tma_load_3d(to + scales_at, &maps.scales, 0, group, nb, barrier);
        if (g.zero_kind) tma_load_3d(to + zeros_at, &maps.zeros, 0, group, nb, barrier);
      };
      int item = first / g.k_blocks, kb = first % g.k_blocks;
      // Weights may come before the operation before has ended.
      if (a.overlap) {
        begun = min(g.stages, last - first);
        for (int s = 0, i = item, k = kb; s < begun; ++s) {
          weights(i, k, s);
          if (++k == g.k_blocks) k = 0, ++i;
        }
        griddepcontrol_wait();
        fence_proxy_async();
        griddepcontrol_launch_dependents();  // not sooner: what ran before the newest operation has ended when the next
                                             // begins
      }
      for (int at = first; at < last; ++at) {
        if (at - first >= begun) {
          mbarrier_wait_parity(empty + 8 * stage, parity ^ 1);
          weights(item, kb, stage);
        }
        tma_load_3d(ring + stage * stage_bytes, &maps.x, 0, item % a.token_tiles * 8 * T, 2 * kb, full + 8 * stage);
        if (++kb == g.k_blocks) kb = 0, ++item;
        if (++stage == g.stages) stage = 0, parity ^= 1;
      }
    }
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const Cast cast(g.is_signed != 0, g.exponent);
  const uint32_t staging = ring + g.stages * stage_bytes + warp * 512;
  const bool sums = !One && a.zero_mode == kZeroSums;
  uint32_t minus[4];  // what is added to the pairs of row class r
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      minus[r] = twice(from_float<BF>(-fmaf(sums ? 0.0f : g.zero, Cast::gain(r), Cast::bias())));
  }
  float sum[H][2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int h = 0; h < H; ++h)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[h][nt][t][i] = 0;
  };
  clear();
  const int units = a.width * T;  // of an item: 32 rows of eight tokens, 1024 bytes of sums
  int item = first / g.k_blocks, kb = first % g.k_blocks, stage = 0, parity = 0;
  bool began_inside = kb != 0;
  for (int step = first; step < last; ++step) {
    const uint32_t at = ring + stage * stage_bytes;
    mbarrier_wait_parity(full + 8 * stage, parity);
    const uint64_t x0 = wgmma_descriptor(at);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      // A warpgroup multiplies together, whether all of its rows exist or not.
      const int slot = warp + h * warps, own = min(slot, a.width - 1);
      if (h > 0 && (slot & ~3) >= a.width) continue;
      const uint32_t words = at + weights_at + own * 512 * B + lane * 16;
      const uint32_t scales = at + scales_at + own * per_block * 64 + (lane >> 2) * 8;
      const uint32_t zeros = at + zeros_at + own * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind;
#pragma unroll
      for (int pass = 0; pass < 2 / P; ++pass) {
        float part[P][T][4];
        // What chunk c does once its words are there.
        const auto multiply_chunk = [&](const uint32_t* q, int c, bool begins) {
#pragma unroll
          for (int ks = 0; ks < 2; ++ks) {
            uint32_t w[P][4];
#pragma unroll
            for (int p = 0; p < P; ++p)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int r = 2 * (pass + p) + (i & 1);
                w[p][i] = cast.pair(q, 4 * (2 * ks + (i >> 1)) + r);
                if constexpr (Cast::kSums) w[p][i] = add_x2<BF>(w[p][i], minus[r]);
              }
            const uint64_t x = x0 + (c >> 1) * (kSlab >> 4) + (c & 1) * 4 + ks * 2;
            wgmma_fence();
#pragma unroll
            for (int p = 0; p < P; ++p) wgmma_k16<BF, T>(part[p], w[p], x, ks != 0 || !begins);
            wgmma_commit();
            wgmma_wait<1>();  // the registers of the products before are free
          }
        };
        // Rows 16 pass + ... of the block: zero points of a group, before its first chunk.
        const auto begin_group = [&](int group) {
          if constexpr (Cast::kSums) {
            if (a.zero_mode == kZeroOfGroups) {
              const uint32_t bytes = ld_shared(zeros + group * 32);
#pragma unroll
              for (int r = 2 * pass; r < 2 * pass + 2 * P; ++r)
                minus[r] = twice(from_float<BF>(
                    -fmaf(g.zero + static_cast<float>((bytes >> 8 * r) & 255), Cast::gain(r), Cast::bias())));
            }
          }
        };
        // Of groups that a last block lacks, products and scales are 0.
        const auto end_group = [&](int group) {
          uint32_t pairs[2];
          ld_shared_v2(pairs[0], pairs[1], scales + group * 64);
          float scale[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const uint16_t bits = static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1));
            scale[r] = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
            if constexpr (Cast::kSums) scale[r] *= Cast::ungain(r);
            else scale[r] *= cast.unpower;
          }
          wgmma_wait<0>();
#pragma unroll
          for (int p = 0; p < P; ++p)
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i) keep_here(part[p][t][i]);
          if constexpr (Cast::kSums && !One) {
            if (sums) {
              float zero[4];
#pragma unroll
              for (int r = 0; r < 4; ++r) zero[r] = g.zero;
              if (g.zero_kind == 1) {
                const uint32_t bytes = ld_shared(zeros + group * 32);
#pragma unroll
                for (int r = 0; r < 4; ++r) zero[r] += static_cast<float>((bytes >> 8 * r) & 255);
              } else if (g.zero_kind == 2) {
                uint32_t halves[2];
                ld_shared_v2(halves[0], halves[1], zeros + group * 64);
#pragma unroll
                for (int r = 0; r < 4; ++r)
                  zero[r] += to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
              }
#pragma unroll
              for (int r = 0; r < 4; ++r) zero[r] *= -Cast::gain(r);
              const long long row =
                  static_cast<long long>(kb * per_block + group) * a.sums_pitch + item % a.token_tiles * 8 * T;
              const float2* const ones = reinterpret_cast<const float2*>(a.sums + row) + (lane & 3);
#pragma unroll
              for (int t = 0; t < T; ++t) {
                const float2 s = __ldg(ones + 4 * t);
#pragma unroll
                for (int p = 0; p < P; ++p)
#pragma unroll
                  for (int i = 0; i < 4; ++i)
                    part[p][t][i] = fmaf(zero[2 * (pass + p) + (i >> 1)], i & 1 ? s.y : s.x, part[p][t][i]);
              }
            }
          }
#pragma unroll
          for (int p = 0; p < P; ++p)
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                sum[h][pass + p][t][i] = fmaf(scale[2 * (pass + p) + (i >> 1)], part[p][t][i], sum[h][pass + p][t][i]);
        };
        if constexpr (One) {
          begin_group(0);
          uint32_t q[4 * B];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            // The vectors that the next chunk is the first to need (and, to begin with, this one).
#pragma unroll
            for (int v = 0; v < B; ++v)
              if (v >= (c == 0 ? 0 : ((c + 1) * B + 3) / 4) && v < ((c + 2) * B + 3) / 4) {
                const uint4 word = ld_shared_v4(words + v * 512);
                q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
              }
            multiply_chunk(q + c * B, c, c == 0);
          }
          end_group(0);
        } else {
          const int chunks = 4 / per_block;  // of a group
#pragma unroll 1
          for (int c = 0, group = 0; c < 4; ++c) {
            uint32_t q[B];
            load_chunk<B>(q, words, c);
            const bool begins = (c & (chunks - 1)) == 0;
            if (begins) begin_group(group);
            multiply_chunk(q, c, begins);
            wgmma_wait<0>();  // products do not reach around a loop
            if (((c + 1) & (chunks - 1)) == 0) end_group(group++);
          }
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    if (++stage == g.stages) stage = 0, parity ^= 1;

    const bool item_ends = ++kb == g.k_blocks;
    if (item_ends || step + 1 == last) {
      if (item_ends && !began_inside) {
        const int token0 = item % a.token_tiles * 8 * T, block0 = item / a.token_tiles * a.width;
#pragma unroll
        for (int h = 0; h < H; ++h) {
          const int slot = warp + h * warps;
          if (slot < a.width && block0 + slot < g.n_blocks) {
#pragma unroll
            for (int t = 0; t < T; ++t) {
              const float v[2][4] = {{sum[h][0][t][0], sum[h][0][t][1], sum[h][0][t][2], sum[h][0][t][3]},
                                     {sum[h][1][t][0], sum[h][1][t][1], sum[h][1][t][2], sum[h][1][t][3]}};
              store_eight<BF>(g, a.vectors, block0 + slot, token0 + 8 * t, v, staging, lane);
            }
          }
        }
      } else {
        // A block keeps the sums of the item that it begins with in its first place.
        const long long place = static_cast<long long>(blockIdx.x) * 2 + (item == first / g.k_blocks ? 0 : 1);
        float4* const to = reinterpret_cast<float4*>(g.partial) + place * units * 64 + lane;
#pragma unroll
        for (int h = 0; h < H; ++h) {
          const int slot = warp + h * warps;
          if (slot < a.width) {
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int nt = 0; nt < 2; ++nt)
                __stcg(to + (slot * T + t) * 64 + nt * 32,
                       make_float4(sum[h][nt][t][0], sum[h][nt][t][1], sum[h][nt][t][2], sum[h][nt][t][3]));
          }
        }
        __threadfence();
        bar_sync(1, 32 * warps);
        if (threadIdx.x == 0) atomicAdd(g.counters + 2 * item, 1u);
      }
      clear();
      if (item_ends) kb = 0, ++item, began_inside = false;
    }
  }

  // The items at both ends of the run, if others share them. All blocks of the grid run at once, so nobody waits for
  // ever.
  if (first == last) return;
  const int front = first / g.k_blocks, back = (last - 1) / g.k_blocks;
  for (int shared_item = front; shared_item <= back; shared_item += max(1, back - front)) {
    const long long begin = static_cast<long long>(shared_item) * g.k_blocks, end = begin + g.k_blocks;
    const int from = static_cast<int>(((begin + 1) * gridDim.x - 1) / total),
              to = static_cast<int>((end * gridDim.x - 1) / total);
    if (from == to) continue;
    const int sharers = to - from + 1, rank = static_cast<int>(blockIdx.x) - from;
    if (threadIdx.x == 0)
      while (ld_acquire(g.counters + 2 * shared_item) < static_cast<unsigned>(sharers)) {
      }
    bar_sync(1, 32 * warps);
    const int token0 = shared_item % a.token_tiles * 8 * T, block0 = shared_item / a.token_tiles * a.width;
    const int unit_end = units * (rank + 1) / sharers;
    for (int unit = units * rank / sharers + warp; unit < unit_end; unit += warps) {
      float v[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 4
      for (int c = from; c <= to; ++c) {
        // Only `from` may have begun in an earlier item.
        const int place = c == from && c * total / gridDim.x < begin ? 1 : 0;
        const float4* const part = reinterpret_cast<const float4*>(g.partial) +
                                   ((static_cast<long long>(c) * 2 + place) * units + unit) * 64 + lane;
        const float4 low = __ldcg(part), high = __ldcg(part + 32);
        v[0][0] += low.x, v[0][1] += low.y, v[0][2] += low.z, v[0][3] += low.w;
        v[1][0] += high.x, v[1][1] += high.y, v[1][2] += high.z, v[1][3] += high.w;
      }
      if (block0 + unit / T < g.n_blocks)
        store_eight<BF>(g, a.vectors, block0 + unit / T, token0 + 8 * (unit % T), v, staging, lane);
    }
    bar_sync(1, 32 * warps);
    // The last to be done leaves both counters at 0 for the next launch.
    if (threadIdx.x == 0 && atomicAdd(g.counters + 2 * shared_item + 1, 1u) + 1 == static_cast<unsigned>(sharers))
      g.counters[2 * shared_item] = g.counters[2 * shared_item + 1] = 0;
  }
}

#endif

}  // namespace lpq::cuda
