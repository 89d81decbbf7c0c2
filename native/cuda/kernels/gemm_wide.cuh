// The same product as gemm_packed.cuh for more than a few tokens, on Hopper's wgmma (weights in registers: the packed order is
// that of its operand A; activations behind a descriptor). What bounds it are the tensor core and what L2 delivers, so:
//  - a strip is as wide as registers allow, up to 512 rows, because every block reads the activations of its strip again; strips
//    side by side may be a cluster (`fan`) that reads them once and sends them to all of its blocks;
//  - zero points leave in the pairs, where a half or bf16 holds code - zero exactly: one addition a pair, no sums of activations.
//    The rest (fractions, bf16 with zero points of groups) goes through sums that an earlier kernel made;
//  - scales are applied to the sums of a group, so products stay exact;
//  - K is cut into slices only as far as there are not enough strips; the blocks of a cluster that hold the slices of a strip add up
//    through each other's shared memory, a share each, in the order of K;
//  - results leave in rows of 32 columns, sixteen bytes a lane.
// One warp feeds a ring in shared memory through the bulk engine, a packed block of K a stage; the others multiply, each
// 32 rows of one packed block (two of them one after the other for up to 64 tokens).
#pragma once
#include "cuda/kernels/gemm_common.cuh"
#include "cuda/kernels/mma.cuh"

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

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <bool BF>
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  if (BF) asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Eight tokens of a packed block's 32 rows, as the accumulators hold them, to y; `staging`: 512 bytes of the warp's own.
template <bool BF>
__device__ __forceinline__ void store_eight(const GemmPackedArgs& g, bool vectors, int block, int token0, const float (&v)[2][4], uint32_t staging, int lane) {
  uint32_t r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = block * 32 + 8 * i + (lane >> 2);
    const float bias = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
    r[i] = from_float<BF>(v[i >> 1][2 * (i & 1)] + bias) | static_cast<uint32_t>(from_float<BF>(v[i >> 1][2 * (i & 1) + 1] + bias)) << 16;
  }
  // Token j's 64 bytes are four chunks, xor-ed with j / 2: neither side meets a bank twice.
  const int row = lane & 7;
  __syncwarp();
  store_matrices_transposed(staging + row * 64 + (((lane >> 3) ^ (row >> 1)) << 4), r);
  __syncwarp();
  const int token = lane >> 2, chunk = lane & 3, n = block * 32 + 8 * chunk, m = token0 + token;
  const uint4 out = load_shared16(staging + token * 64 + ((chunk ^ (token >> 1)) << 4));
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

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_wide(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int H = kWideBlocks<T>, P = kWideHalves<T>;
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int cluster = a.fan * a.slices, rank = static_cast<int>(blockIdx.x) % cluster, here = static_cast<int>(blockIdx.x) / cluster;
  const int clusters = static_cast<int>(gridDim.x) / cluster, beside = rank % a.fan, slice = rank / a.fan;
  const int k_first = static_cast<int>(static_cast<long long>(g.k_blocks) * slice / a.slices), k_last = static_cast<int>(static_cast<long long>(g.k_blocks) * (slice + 1) / a.slices);

  // A stage: activations [2][8 T tokens][128 bytes], weights [width][512 B], scales and zeros [width][groups][32].
  const int weights_at = 2 * kSlab, scales_at = weights_at + a.width * 512 * B, zeros_at = scales_at + a.width * g.groups_per_block * 64;
  const int used_bytes = zeros_at + a.width * g.groups_per_block * 32 * g.zero_kind, stage_bytes = (used_bytes + 1023) & ~1023;
  const uint32_t full = shared_address(shared), empty = full + 8 * kWideStages, ring = full + 1024;

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, warps * a.fan);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if (a.overlap) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  if (warp >= warps) {
    registers_down<T <= 4 ? 32 : 40>();
    if (warp == warps && lane == 0) {
      const bool once = a.token_tiles == 1;
      const uint16_t all = static_cast<uint16_t>(((1 << a.fan) - 1) << slice * a.fan);
      // Of the activations this block fetches its share, and sends it to the blocks beside it.
      const int parts = a.fan / 2, rows = parts > 1 ? 8 * T / parts : 8 * T;
      const int slab = parts > 1 ? beside / parts : beside, row = parts > 1 ? beside % parts * rows : 0;
      const auto weights = [&](int item, int kb, int stage) {
        const uint32_t barrier = full + 8 * stage, to = ring + stage * stage_bytes;
        const int nb = (item / a.token_tiles * a.fan + beside) * a.width, group = g.channel ? 0 : kb * g.groups_per_block;
        barrier_expect(barrier, used_bytes);  // boxes are whole beyond the tensors too, with zeros
        if (once) copy_box_once(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
        else copy_box(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
        copy_box(to + scales_at, &maps.scales, 0, group, nb, barrier);
        if (g.zero_kind) copy_box(to + zeros_at, &maps.zeros, 0, group, nb, barrier);
      };
      const auto activations = [&](int item, int kb, int stage) {
        const uint32_t barrier = full + 8 * stage, to = ring + stage * stage_bytes;
        const int token = item % a.token_tiles * 8 * T;
        if (a.fan == 1) copy_box(to, &maps.x, 0, token, 2 * kb, barrier);
        else copy_box_to(to + slab * kSlab + row * 128, &maps.x, 0, token + row, 2 * kb + slab, barrier, all);
      };
      int stage = 0, parity = 0, begun = 0;
      // Weights may come before the operation before has ended.
      if (a.overlap) {
        begun = min(g.stages, k_last - k_first);
        for (int s = 0; s < begun; ++s) weights(here, k_first + s, s);
        asm volatile("griddepcontrol.wait;" ::: "memory");
        for (int s = 0; s < begun; ++s) activations(here, k_first + s, s);
        stage = begun;
        if (stage == g.stages) stage = 0, parity = 1;
      }
      for (int item = here; item < a.items; item += clusters) {
        for (int kb = k_first + begun; kb < k_last; ++kb) {
          barrier_wait(empty + 8 * stage, parity ^ 1);
          weights(item, kb, stage);
          activations(item, kb, stage);
          if (++stage == g.stages) stage = 0, parity ^= 1;
        }
        begun = 0;
      }
    }
    __syncwarp();
    if (cluster > 1) {
      cluster_arrive();
      cluster_wait();
    }
    if (a.slices > 1) {
      cluster_arrive();
      cluster_wait();
    }
    return;
  }

  registers_up<T <= 4 ? 112 : 232>();
  const Cast cast(g.is_signed != 0, g.exponent);
  const uint32_t staging = ring + g.stages * stage_bytes + warp * 512;
  uint32_t minus[4];  // what is added to the pairs of row class r
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r) minus[r] = twice(from_float<BF>(-fmaf(a.zero_mode == kZeroSums ? 0.0f : g.zero, Cast::gain(r), Cast::bias())));
  }
  float sum[H][2][T][4];
  int stage = 0, parity = 0;
  for (int item = here; item < a.items; item += clusters) {
    const int token0 = item % a.token_tiles * 8 * T, block0 = (item / a.token_tiles * a.fan + beside) * a.width;
#pragma unroll
    for (int h = 0; h < H; ++h)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[h][nt][t][i] = 0;
    for (int kb = k_first; kb < k_last; ++kb) {
      const uint32_t at = ring + stage * stage_bytes;
      barrier_wait(full + 8 * stage, parity);
      const uint64_t x0 = rows_descriptor(at);
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const int slot = warp + h * warps;
        // A warpgroup multiplies together, whether all of its rows exist or not.
        if (h > 0 && (slot & ~3) >= a.width) continue;
        const int own = min(slot, a.width - 1);
        const uint32_t words = at + weights_at + own * 512 * B + lane * 16;
        const uint32_t scales = at + scales_at + own * g.groups_per_block * 64 + (lane >> 2) * 8;
        const uint32_t zeros = at + zeros_at + own * g.groups_per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind;
#pragma unroll
        for (int pass = 0; pass < 2 / P; ++pass) {
          uint32_t q[4 * B];
          float part[P][T][4];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const bool begins = c == 0 || g.groups_per_block == 4 || (c == 2 && g.groups_per_block == 2);
            const int group = g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
            // The vectors that the next chunk is the first to need (and, to begin with, this one).
#pragma unroll
            for (int v = 0; v < B; ++v)
              if (v >= (c == 0 ? 0 : ((c + 1) * B + 3) / 4) && v < ((c + 2) * B + 3) / 4) {
                const uint4 word = load_shared16(words + v * 512);
                q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
              }
            if constexpr (Cast::kSums) {
              if (begins && a.zero_mode == kZeroOfGroups) {
                uint32_t bytes;
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bytes) : "r"(zeros + group * 32) : "memory");
#pragma unroll
                for (int r = 0; r < 4; ++r) minus[r] = twice(from_float<BF>(-fmaf(g.zero + static_cast<float>((bytes >> 8 * r) & 255), Cast::gain(r), Cast::bias())));
              }
            }
#pragma unroll
            for (int ks = 0; ks < 2; ++ks) {
              uint32_t w[P][4];
#pragma unroll
              for (int p = 0; p < P; ++p)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                  const int r = 2 * (pass + p) + (i & 1);
                  w[p][i] = cast.pair(q + c * B, 4 * (2 * ks + (i >> 1)) + r);
                  if constexpr (Cast::kSums) w[p][i] = add_pairs<BF>(w[p][i], minus[r]);
                }
              const uint64_t x = x0 + (c >> 1) * (kSlab >> 4) + (c & 1) * 4 + ks * 2;
              group_fence();
#pragma unroll
              for (int p = 0; p < P; ++p) group_multiply<BF, T>(part[p], w[p], x, ks != 0 || !begins);
              group_commit();
              group_wait<1>();  // the registers of the products before are free
            }
            if (c == 3 || g.groups_per_block == 4 || (c == 1 && g.groups_per_block == 2)) {
              uint32_t pairs[2];
              asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(scales + group * 64) : "memory");
              float scale[4];
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const uint16_t bits = static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1));
                scale[r] = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
                if constexpr (Cast::kSums) scale[r] *= Cast::ungain(r);
                else scale[r] *= cast.unpower;
              }
              group_wait<0>();
#pragma unroll
              for (int p = 0; p < P; ++p)
#pragma unroll
                for (int t = 0; t < T; ++t)
#pragma unroll
                  for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(part[p][t][i])::"memory");
              // Of groups that a last block lacks, products and scales are 0.
              if constexpr (Cast::kSums) {
                if (a.zero_mode == kZeroSums) {
                  float zero[4];
#pragma unroll
                  for (int r = 0; r < 4; ++r) zero[r] = g.zero;
                  if (g.zero_kind == 1) {
                    uint32_t bytes;
                    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bytes) : "r"(zeros + group * 32) : "memory");
#pragma unroll
                    for (int r = 0; r < 4; ++r) zero[r] += static_cast<float>((bytes >> 8 * r) & 255);
                  } else if (g.zero_kind == 2) {
                    uint32_t halves[2];
                    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(halves[0]), "=r"(halves[1]) : "r"(zeros + group * 64) : "memory");
#pragma unroll
                    for (int r = 0; r < 4; ++r) zero[r] += to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
                  }
#pragma unroll
                  for (int r = 0; r < 4; ++r) zero[r] *= -Cast::gain(r);
                  const float2* const ones = reinterpret_cast<const float2*>(a.sums + static_cast<long long>(kb * g.groups_per_block + group) * a.sums_pitch + token0) + (lane & 3);
#pragma unroll
                  for (int t = 0; t < T; ++t) {
                    const float2 s = __ldg(ones + 4 * t);
#pragma unroll
                    for (int p = 0; p < P; ++p)
#pragma unroll
                      for (int i = 0; i < 4; ++i) part[p][t][i] = fmaf(zero[2 * (pass + p) + (i >> 1)], i & 1 ? s.y : s.x, part[p][t][i]);
                  }
                }
              }
#pragma unroll
              for (int p = 0; p < P; ++p)
#pragma unroll
                for (int t = 0; t < T; ++t)
#pragma unroll
                  for (int i = 0; i < 4; ++i) sum[h][pass + p][t][i] = fmaf(scale[2 * (pass + p) + (i >> 1)], part[p][t][i], sum[h][pass + p][t][i]);
            }
          }
        }
      }
      __syncwarp();
      if (a.fan == 1) {
        if (lane == 0) barrier_arrive(empty + 8 * stage);
      } else if (lane < a.fan) {
        barrier_arrive_there(address_of(empty + 8 * stage, slice * a.fan + lane));
      }
      if (++stage == g.stages) stage = 0, parity ^= 1;
    }

    if (a.slices == 1) {
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const int slot = warp + h * warps;
        if (slot < a.width && block0 + slot < g.n_blocks)
#pragma unroll
          for (int t = 0; t < T; ++t) {
            const float v[2][4] = {{sum[h][0][t][0], sum[h][0][t][1], sum[h][0][t][2], sum[h][0][t][3]}, {sum[h][1][t][0], sum[h][1][t][1], sum[h][1][t][2], sum[h][1][t][3]}};
            store_eight<BF>(g, a.vectors, block0 + slot, token0 + 8 * t, v, staging, lane);
          }
      }
    }
  }
  if (a.slices > 1) {
    // The one item's sums into the ring, which nobody needs any more: [packed block][8 tokens][half][lane] of sixteen bytes.
    barrier_among(1, 32 * warps);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const int slot = warp + h * warps;
      if (slot < a.width)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
            asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(ring + (slot * T + t) * 1024 + nt * 512 + lane * 16), "f"(sum[h][nt][t][0]), "f"(sum[h][nt][t][1]),
                         "f"(sum[h][nt][t][2]), "f"(sum[h][nt][t][3])
                         : "memory");
    }
    cluster_arrive();
    cluster_wait();
    const int token0 = here % a.token_tiles * 8 * T, block0 = (here / a.token_tiles * a.fan + beside) * a.width;
    for (int unit = slice + a.slices * warp; unit < a.width * T; unit += a.slices * warps) {
      const int block = block0 + unit / T;
      if (block >= g.n_blocks) break;
      const uint32_t from = ring + unit * 1024 + lane * 16;
      float v[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 4
      for (int s = 0; s < a.slices; ++s) {
        const uint32_t there = address_of(from, s * a.fan + beside);
        const float4 low = load_there(there), high = load_there(there + 512);
        v[0][0] += low.x, v[0][1] += low.y, v[0][2] += low.z, v[0][3] += low.w;
        v[1][0] += high.x, v[1][1] += high.y, v[1][2] += high.z, v[1][3] += high.w;
      }
      store_eight<BF>(g, a.vectors, block, token0 + 8 * (unit % T), v, staging, lane);
    }
    __syncwarp();
  }
  // Nobody leaves while others may still reach into its shared memory.
  if (cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
}

#endif

}  // namespace lpq::cuda
