// y = x Wᵀ for codes of few bits on Hopper's wgmma, 128 of k a step. Rows of weights are the rows of the product, so
// that a tile has as few tokens as the case wants:
//  - BytesInt: s8 x s8, 32-bit sums over all of K, hence exact;
//  - BytesFloat: e4m3 x e4m3; the tensor core keeps about 14 bits of a sum, so every 128 of k are added in fp32 to
//    registers of their own;
//  - NibblesInt: 4-bit weights x s8. Nibbles lie as the registers of wgmma's operand A want them and become 16 code by
//    one AND, after a shift for half of them. Sums of 128 of k are exact, scaled by group in fp32;
//  - NibblesFloat: 4-bit weights x e4m3, in which they are exact; sums of 128 of k as BytesFloat's, scaled by group in
//    fp32;
//  - Mixed (W4Ax): the same with activations of 8 or 4 bits by blocks of 128 channels and a scale a token and block.
//    Activations of 4 bits are copied as they are and widened in shared memory by the warps that feed.
// One thread feeds a ring through the bulk engine; blocks of a cluster have one strip of weights, each fetching half of
// it for both. Items beyond whole rounds are cut into equal runs of steps, whose sums go through the workspace in the
// order of K.
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/families/w4ax.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

// kFloat: what is multiplied is e4m3; kTurns: of 128 tokens the warpgroups take turns at the tensor core.
struct BytesInt {
  static constexpr bool kNibbles = false, kMixed = false, kWhole = true, kFloat = false, kTurns = false;
  using Sum = int;
  using Part = int;
};
struct BytesFloat {
  static constexpr bool kNibbles = false, kMixed = false, kWhole = false, kFloat = true, kTurns = false;
  using Sum = float;
  using Part = float;
};
struct NibblesInt {
  static constexpr bool kNibbles = true, kMixed = false, kWhole = false, kFloat = false, kTurns = true;
  using Sum = float;
  using Part = int;
};
struct NibblesFloat {
  static constexpr bool kNibbles = true, kMixed = false, kWhole = false, kFloat = true, kTurns = false;
  using Sum = float;
  using Part = float;
};
struct Mixed {
  static constexpr bool kNibbles = true, kMixed = true, kWhole = false, kFloat = false, kTurns = true;
  using Sum = float;
  using Part = int;
};

#if LPQ_HAS_WGMMA

// Rows of a warp's 32 that lane / 4 names in register pair `high` of half `h`, in eights.
template <class Kind>
__device__ __forceinline__ constexpr int row_eight(int h, int high) {
  return Kind::kNibbles ? 2 * h + high : 2 * high + h;
}

struct RowFactors {
  float scale[4], bias[4];
};
template <class Kind>
__device__ __forceinline__ RowFactors row_factors(const ActArgs& a, int row0, int lane) {
  RowFactors f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = row0 + 8 * i + (lane >> 2);
    f.scale[i] = !Kind::kNibbles && n < a.n ? __ldg(a.w_scales + n) : 1.0f;
    f.bias[i] = a.bias && n < a.n ? __ldg(a.bias + n) : 0.0f;
  }
  return f;
}

// Eight tokens of a warp's 32 rows to y; v: [row eights][token 2 (lane % 4) and the next]. `staging`: 512 bytes of the
// warp's own.
template <class Kind>
__device__ __forceinline__ void store_tokens(const ActArgs& a, int row0, int token0,
                                             const typename Kind::Sum (&v)[4][2], const RowFactors& f, uint32_t staging,
                                             int lane) {
  float x_scale[2] = {1.0f, 1.0f};
  if constexpr (!Kind::kMixed) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int m = token0 + 2 * (lane & 3) + j;
      if (m < a.m) x_scale[j] = __ldg(a.x_scales + m);
    }
  }
  float out[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      out[i][j] = __fadd_rn(__fmul_rn(static_cast<float>(v[i][j]), __fmul_rn(x_scale[j], f.scale[i])), f.bias[i]);
  if (a.store == kActStoreF32) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = row0 + 8 * i + (lane >> 2), m = token0 + 2 * (lane & 3) + j;
        if (n < a.n && m < a.m) static_cast<float*>(a.y)[static_cast<long long>(m) * a.n + n] = out[i][j];
      }
    return;
  }
  uint32_t r[4];
  if (a.store == kActStoreBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = from_float<true>(out[i][0]) | static_cast<uint32_t>(from_float<true>(out[i][1])) << 16;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = from_float<false>(out[i][0]) | static_cast<uint32_t>(from_float<false>(out[i][1])) << 16;
  }
  // Token j's 64 bytes are four chunks, xor-ed with j / 2: neither side meets a bank twice.
  const int row = lane & 7;
  __syncwarp();
  stmatrix_x4_trans(staging + row * 64 + (((lane >> 3) ^ (row >> 1)) << 4), r);
  __syncwarp();
  const int token = lane >> 2, chunk = lane & 3, n = row0 + 8 * chunk, m = token0 + token;
  const uint4 line = ld_shared_v4(staging + token * 64 + ((chunk ^ (token >> 1)) << 4));
  if (m >= a.m) return;
  uint16_t* const to = static_cast<uint16_t*>(a.y) + static_cast<long long>(m) * a.n + n;
  if (a.vectors && n + 8 <= a.n) {
    *reinterpret_cast<uint4*>(to) = line;
  } else {
    const uint32_t words[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (n + i < a.n) to[i] = static_cast<uint16_t>(words[i >> 1] >> 16 * (i & 1));
  }
}

template <class Kind, int T>
__device__ __forceinline__ void feed_act(const ActArgs& a, const ActMaps& maps, uint32_t full, uint32_t empty,
                                         uint32_t raw_full, uint32_t ring, int unit, int units, int rank) {
  constexpr ActStage kStage = act_stage(T, Kind::kNibbles, Kind::kMixed);
  ActWalk walk(a, unit, units);
  int stage = 0, parity = 0;
  const int parts = a.cluster;
  for (int step = 0; step < walk.steps; ++step) {
    mbarrier_wait_parity(empty + 8 * stage, parity ^ 1);
    const uint32_t at = ring + stage * kStage.bytes, barrier = full + 8 * stage;
    const int strip = walk.item / a.token_tiles, token0 = (walk.item % a.token_tiles * parts + rank) * 8 * T;
    int block = walk.kb;
    bool four = false;
    if constexpr (Kind::kMixed) {
      block = __ldg(a.blocks + walk.kb);
      four = block < 0;
      if (four) block = ~block;
      const uint32_t raw = raw_full + 8 * stage;
      if (four) {
        mbarrier_arrive_expect_tx(raw, T * 512);
        tma_load_3d(at + kStage.raw, &maps.x4, block * 64, token0, 0, raw);
      } else {
        mbarrier_arrive(raw);
      }
    }
    mbarrier_arrive_expect_tx(
        barrier, kStage.x + (four ? 0 : T * 1024) + (Kind::kNibbles ? kActRows * 4 : 0) + (Kind::kMixed ? T * 32 : 0));
    if (!four) tma_load_3d(at + kStage.x, &maps.x, block * 128, token0, 0, barrier);
    if constexpr (Kind::kNibbles) {
      if (parts == 2)
        tma_load_3d_multicast(at + rank * 8192, &maps.weights, 0, walk.kb, strip * 16 + rank * 8, barrier);
      else
        for (int part = 0; part < 2; ++part) {
          if (a.token_tiles == 1)
            tma_load_3d_evict_first(at + part * 8192, &maps.weights, 0, walk.kb, strip * 16 + part * 8, barrier);
          else tma_load_3d(at + part * 8192, &maps.weights, 0, walk.kb, strip * 16 + part * 8, barrier);
        }
      tma_load_3d(at + kStage.w_scales, &maps.w_scales, strip * (kActRows / 2), walk.kb, 0, barrier);
    } else {
      if (parts == 2)
        tma_load_3d_multicast(at + rank * 16384, &maps.weights, walk.kb * 128, strip * kActRows + rank * 128, 0,
                              barrier);
      else
        for (int part = 0; part < 2; ++part) {
          if (a.token_tiles == 1)
            tma_load_3d_evict_first(at + part * 16384, &maps.weights, walk.kb * 128, strip * kActRows + part * 128, 0,
                                    barrier);
          else tma_load_3d(at + part * 16384, &maps.weights, walk.kb * 128, strip * kActRows + part * 128, 0, barrier);
        }
    }
    if constexpr (Kind::kMixed) tma_load_3d(at + kStage.x_scales, &maps.x_scales, token0 / 2, walk.kb, 0, barrier);
    walk.next(a);
    if (++stage == a.stages) stage = 0, parity ^= 1;
  }
}

// Codes of 4 bits, two's complement, in the low and in the high halves of bytes: as s8, 16 times the code, or as e4m3,
// 2^-9 of it: numbers from 0 to 8 are so many 2^-9 below the first binade and in it, and bit 3 is the sign.
template <bool Float>
__device__ __forceinline__ void widen_nibbles(uint32_t nibbles, uint32_t& low, uint32_t& high) {
  if constexpr (Float) {
    constexpr uint32_t kEights = 0x08080808u, kCodes = 0x0f0f0f0fu, kSigns = 0x80808080u;
    low = __vabsdiffu4((nibbles & kCodes) ^ kEights, kEights) | (nibbles << 4 & kSigns);
    high = __vabsdiffu4((nibbles >> 4 & kCodes) ^ kEights, kEights) | (nibbles & kSigns);
  } else {
    low = nibbles << 4 & 0xf0f0f0f0u, high = nibbles & 0xf0f0f0f0u;
  }
}

// Sixteen bytes of a token's row hold 32 codes of 4 bits: low nibbles of its bytes are the first 16, as 16 times the
// code.
template <int T>
__device__ __forceinline__ void widen_act(const ActArgs& a, uint32_t full, uint32_t raw_full, uint32_t ring, int unit,
                                          int units, int thread, int threads) {
  constexpr ActStage kStage = act_stage(T, true, true);
  ActWalk walk(a, unit, units);
  int stage = 0, parity = 0;
  for (int step = 0; step < walk.steps; ++step) {
    const bool four = __ldg(a.blocks + walk.kb) < 0;
    mbarrier_wait_parity(raw_full + 8 * stage, parity);
    if (four) {
      const uint32_t at = ring + stage * kStage.bytes;
#pragma unroll 2
      for (int i = thread; i < T * 32; i += threads) {
        const int row = i >> 2, chunk = 2 * (i & 3);
        const uint4 q = ld_shared_v4(at + kStage.raw + i * 16);
        constexpr uint32_t kMask = 0xf0f0f0f0u;
        const uint32_t to = at + kStage.x + row * 128;
        st_shared_v4(to + ((chunk ^ (row & 7)) << 4),
                     make_uint4(q.x << 4 & kMask, q.y << 4 & kMask, q.z << 4 & kMask, q.w << 4 & kMask));
        st_shared_v4(to + (((chunk + 1) ^ (row & 7)) << 4),
                     make_uint4(q.x & kMask, q.y & kMask, q.z & kMask, q.w & kMask));
      }
      fence_proxy_async_shared();
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(full + 8 * stage);
    walk.next(a);
    if (++stage == a.stages) stage = 0, parity ^= 1;
  }
}

template <class Kind, int T>
__device__ __forceinline__ void gemm_act(const ActArgs& a, const ActMaps& maps) {
  using Sum = typename Kind::Sum;
  using Part = typename Kind::Part;
  constexpr ActStage kStage = act_stage(T, Kind::kNibbles, Kind::kMixed);
  constexpr bool kWhole = Kind::kWhole;  // sums of all of K stay in the tensor core
  constexpr int P = T <= 8 ? 2 : 1;      // halves that multiply at once
  constexpr int kWarps = 8;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int rank = a.cluster == 2 ? cluster_ctarank() : 0, unit = static_cast<int>(blockIdx.x) / a.cluster,
            units = static_cast<int>(gridDim.x) / a.cluster;
  const uint32_t full = shared_address(dynamic_shared()), empty = full + 8 * kActStages,
                 raw_full = empty + 8 * kActStages, ring = full + 1024;

  if (threadIdx.x == 0) {
    for (int s = 0; s < a.stages; ++s) {
      mbarrier_init(full + 8 * s, Kind::kMixed ? 4 : 1);
      mbarrier_init(empty + 8 * s, kWarps * a.cluster);
      mbarrier_init(raw_full + 8 * s, 1);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  __syncthreads();
  if (a.cluster == 2) cluster_sync();

  if (warp >= kWarps) {
    setmaxnreg_dec<40>();
    if (warp == kWarps) {
      if (lane == 0) feed_act<Kind, T>(a, maps, full, empty, raw_full, ring, unit, units, rank);
    } else if constexpr (Kind::kMixed) {
      widen_act<T>(a, full, raw_full, ring, unit, units, static_cast<int>(threadIdx.x) - 32 * (kWarps + 1), 96);
    }
  } else {
    setmaxnreg_inc<232>();
    const uint32_t staging = ring + a.stages * kStage.bytes + warp * 512;
    const int group = warp >> 2, own = warp & 3;  // warpgroup, and the warp's number in it
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) {
        if (a.cluster == 2)
          mbarrier_arrive_cluster(empty + 8 * stage, 0), mbarrier_arrive_cluster(empty + 8 * stage, 1);
        else mbarrier_arrive(empty + 8 * stage);
      }
    };
    constexpr int kUnits = kWarps * T;  // of an item: 32 rows of eight tokens, 1024 bytes of sums
    ActWalk walk(a, unit, units);
    int stage = 0, parity = 0;
    constexpr bool kTurns = Kind::kTurns && P == 1;  // of e4m3 there is too little to add: turns cost 2 %
    if (kTurns && group == 1) bar_arrive(2, 32 * kWarps);
    for (int to_go = walk.steps; to_go > 0;) {
      // An item, or as much of it as is this block's.
      const int item = walk.item, begin_kb = walk.kb,
                length = walk.left > 0 ? min(walk.left, a.k_blocks - begin_kb) : a.k_blocks;
      to_go -= length;
      Sum sum[2][T][4];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[h][t][i] = 0;
      int before = -1;
#pragma unroll 1
      for (int step = 0; step < length; ++step) {
        const uint32_t at = ring + stage * kStage.bytes;
        float unpower = Kind::kFloat ? 512.0f : 0.0625f;  // of what widen_nibbles makes of a code
        if constexpr (Kind::kMixed) unpower = __ldg(a.blocks + begin_kb + step) < 0 ? 0.00390625f : 0.0625f;
        mbarrier_wait_parity(full + 8 * stage, parity);
        const uint64_t x0 = wgmma_descriptor(at + kStage.x, 1024);
        if constexpr (kWhole) {
          const uint64_t w0 = wgmma_descriptor(at + group * 16384, 2048);
          wgmma_fence();
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int ks = 0; ks < 4; ++ks) wgmma_k32<T>(sum[h], w0 + h * 64 + ks * 2, x0 + ks * 2, step + ks != 0);
          wgmma_commit();
          wgmma_wait<1>();
          if (before >= 0) release(before);
          before = stage;
        } else {
#pragma unroll
          for (int pass = 0; pass < 2; pass += P) {
            // Of 128 tokens nibbles take half after half: what is done is added up while the other half multiplies.
            constexpr int kSplit = kTurns ? 2 : 1, kPart = T / kSplit;
            Part part[P * kSplit][kPart][4];
            uint32_t w[P][4][4];
            float row_scale[P][2];
            if constexpr (Kind::kNibbles) {
#pragma unroll
              for (int p = 0; p < P; ++p) {
                const uint32_t words = at + ((group * 4 + own) * 2 + pass + p) * 1024 + lane * 16;
#pragma unroll
                for (int v = 0; v < 2; ++v) {
                  const uint4 q = ld_shared_v4(words + v * 512);
                  widen_nibbles<Kind::kFloat>(q.x, w[p][2 * v][0], w[p][2 * v][2]);
                  widen_nibbles<Kind::kFloat>(q.y, w[p][2 * v][1], w[p][2 * v][3]);
                  widen_nibbles<Kind::kFloat>(q.z, w[p][2 * v + 1][0], w[p][2 * v + 1][2]);
                  widen_nibbles<Kind::kFloat>(q.w, w[p][2 * v + 1][1], w[p][2 * v + 1][3]);
                }
#pragma unroll
                for (int v = 0; v < 4; ++v)
#pragma unroll
                  for (int i = 0; i < 4; ++i) keep_here(w[p][v][i]);
              }
            }
            // The warpgroups take turns: while one's products run, the other adds up its own. Without turns they run in
            // step, and the tensor core rests while both add.
            if constexpr (kTurns) bar_sync(2 + group, 32 * kWarps);
            wgmma_fence();
#pragma unroll
            for (int p = 0; p < P * kSplit; ++p) {
              const uint64_t w0 = wgmma_descriptor(at + group * 16384, 2048),
                             x = x0 + (kSplit == 2 ? p * (kPart * 64) : 0);
#pragma unroll
              for (int ks = 0; ks < 4; ++ks) {
                if constexpr (Kind::kNibbles) wgmma_k32<kPart>(part[p], w[p / kSplit][ks], x + ks * 2, ks != 0);
                else wgmma_k32<kPart>(part[p], w0 + (pass + p) * 64 + ks * 2, x + ks * 2, ks != 0);
              }
              wgmma_commit();
            }
            if constexpr (kTurns) bar_arrive(3 - group, 32 * kWarps);
#pragma unroll
            for (int p = 0; p < P * kSplit; ++p) {
              const int h = pass + p / kSplit, t0 = kSplit == 2 ? p * kPart : 0;
              if constexpr (Kind::kNibbles) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                  const uint32_t from =
                      at + kStage.w_scales + ((group * 4 + own) * 32 + 8 * row_eight<Kind>(h, i) + (lane >> 2)) * 4;
                  row_scale[p / kSplit][i] = __uint_as_float(ld_shared(from)) * unpower;
                }
              }
              if (p + 1 < P * kSplit) wgmma_wait<1>();
              else wgmma_wait<0>();
#pragma unroll
              for (int t = 0; t < kPart; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) keep_here(part[p][t][i]);
#pragma unroll
              for (int t = 0; t < kPart; ++t) {
                float x_scale[2] = {1.0f, 1.0f};
                if constexpr (Kind::kMixed) {
                  uint32_t low, high;
                  ld_shared_v2(low, high, at + kStage.x_scales + (t0 + t) * 32 + (lane & 3) * 8);
                  x_scale[0] = __uint_as_float(low), x_scale[1] = __uint_as_float(high);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                  if constexpr (Kind::kNibbles) {
                    const float exact = static_cast<float>(part[p][t][i]);  // integers below 2^21: exact
                    const float scale =
                        Kind::kMixed ? x_scale[i & 1] * row_scale[p / kSplit][i >> 1] : row_scale[p / kSplit][i >> 1];
                    sum[h][t0 + t][i] = fmaf(exact, scale, sum[h][t0 + t][i]);
                  } else {
                    sum[h][t0 + t][i] += part[p][t][i];
                  }
                }
              }
            }
          }
          release(stage);
        }
        if (++stage == a.stages) stage = 0, parity ^= 1;
        walk.next(a);
      }
      if constexpr (Kind::kWhole) {
        wgmma_wait<0>();
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) keep_here(sum[h][t][i]);
        release(before);
      }
      if (length == a.k_blocks) {
        const int row0 = item / a.token_tiles * kActRows + warp * 32,
                  token0 = (item % a.token_tiles * a.cluster + rank) * 8 * T;
        const RowFactors f = row_factors<Kind>(a, row0, lane);
#pragma unroll
        for (int t = 0; t < T; ++t) {
          Sum v[4][2];
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < 4; ++i) v[row_eight<Kind>(h, i >> 1)][i & 1] = sum[h][t][i];
          store_tokens<Kind>(a, row0, token0 + 8 * t, v, f, staging, lane);
        }
      } else {
        // A block keeps the sums of the item that it begins with in its first place.
        const long long place = static_cast<long long>(blockIdx.x) * 2 + (item == walk.first / a.k_blocks ? 0 : 1);
        int4* const to = reinterpret_cast<int4*>(a.partial) + place * kUnits * 64 + lane;
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            int4 bits;
            if constexpr (kWhole) bits = make_int4(sum[h][t][0], sum[h][t][1], sum[h][t][2], sum[h][t][3]);
            else
              bits = make_int4(__float_as_int(sum[h][t][0]), __float_as_int(sum[h][t][1]), __float_as_int(sum[h][t][2]),
                               __float_as_int(sum[h][t][3]));
            __stcg(to + (warp * T + t) * 64 + h * 32, bits);
          }
        __threadfence();
        bar_sync(1, 32 * kWarps);
        if (threadIdx.x == 0) atomicAdd(a.counters + 2 * (item * a.cluster + rank), 1u);
      }
    }

    if (kTurns && group == 0) bar_sync(2, 32 * kWarps);  // the other's last pass
    // The shared items at both ends of the run. All blocks of the grid run at once, so nobody waits for ever.
    const long long total = static_cast<long long>(a.shared) * a.k_blocks;
    const int first = static_cast<int>(unit * total / units), last = static_cast<int>((unit + 1) * total / units);
    const int front = first / a.k_blocks, back = (last - 1) / a.k_blocks;
    for (int item = front; first != last && item <= back; item += max(1, back - front)) {
      const long long begin = static_cast<long long>(item) * a.k_blocks, end = begin + a.k_blocks;
      const int from = static_cast<int>(((begin + 1) * units - 1) / total),
                to = static_cast<int>((end * units - 1) / total);
      if (from == to) continue;
      const int sharers = to - from + 1, share = unit - from;
      unsigned* const counter = a.counters + 2 * (item * a.cluster + rank);
      if (threadIdx.x == 0)
        while (ld_acquire(counter) < static_cast<unsigned>(sharers)) {
        }
      bar_sync(1, 32 * kWarps);
      const int strip0 = item / a.token_tiles * kActRows, token0 = (item % a.token_tiles * a.cluster + rank) * 8 * T;
      const int unit_end = kUnits * (share + 1) / sharers;
      for (int u = kUnits * share / sharers + warp; u < unit_end; u += kWarps) {
        Sum v[4][2] = {};
#pragma unroll 4
        for (int c = from; c <= to; ++c) {
          // Only `from` may have begun in an earlier item.
          const int place = c == from && c * total / units < begin ? 1 : 0;
          const int4* const part = reinterpret_cast<const int4*>(a.partial) +
                                   ((static_cast<long long>(c * a.cluster + rank) * 2 + place) * kUnits + u) * 64 +
                                   lane;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int4 bits = __ldcg(part + 32 * h);
            const int four[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if constexpr (kWhole) v[row_eight<Kind>(h, i >> 1)][i & 1] += four[i];
              else v[row_eight<Kind>(h, i >> 1)][i & 1] += __int_as_float(four[i]);
            }
          }
        }
        const int row0 = strip0 + u / T * 32;
        store_tokens<Kind>(a, row0, token0 + 8 * (u % T), v, row_factors<Kind>(a, row0, lane), staging, lane);
      }
      bar_sync(1, 32 * kWarps);
      // The last to be done leaves both counters at 0 for the next launch.
      if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) + 1 == static_cast<unsigned>(sharers))
        counter[0] = counter[1] = 0;
    }
  }
  if (a.cluster == 2) cluster_sync();  // nobody leaves while another may still write to its shared memory
}

#endif

}  // namespace lpq::cuda

// Compiled for sm_90a alone (scripts/build-cuda.mjs): elsewhere there would be kernels that do nothing.
#define LPQ_GEMM_ACT(kind, name, tiles)                                                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kActThreads, 1)                                     \
      lpq_gemm_act_##name##_m##tiles(lpq::cuda::ActArgs a, const __grid_constant__ lpq::cuda::ActMaps maps) { \
    lpq::cuda::gemm_act<lpq::cuda::kind, tiles>(a, maps);                                                     \
  }
#define LPQ_GEMM_ACT_TILES(kind, name) \
  LPQ_GEMM_ACT(kind, name, 2) LPQ_GEMM_ACT(kind, name, 4) LPQ_GEMM_ACT(kind, name, 8) LPQ_GEMM_ACT(kind, name, 16)
