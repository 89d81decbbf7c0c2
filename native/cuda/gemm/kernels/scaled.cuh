// The same product as wide.cuh for many tokens, with MARLIN's arithmetic: w = (code - zero) * scale rounded to f16
// or bf16 once, as if weights were dequantized first. Sums then need no scales, so the accumulators have all the
// registers. Two forms, of eight warps that multiply, two warpgroups of 4 warps:
//  - two halves (P = 2): a block takes 256 rows and up to 128 tokens, a warp a packed block of 32 rows, both of its
//    16-row halves;
//  - one half (P = 1): 128 rows and up to 256 tokens. Both warpgroups have the same four packed blocks; the first
//    multiplies rows 0 to 15 of each (row classes r = 0, 1), the second rows 16 to 31 (r = 2, 3). So a code is cast
//    once for 256 tokens, not once for 128. (warp, lane, pair i of 16 of K) -> (n = 32 slot + 16 half + 8 (i & 1) +
//    lane / 4, k = 8 (i >> 1) + 2 (lane % 4) and the next), where slot = warp % 4 and half = warp / 4; with two halves
//    slot = warp and half is the number of the product.
// While products run, pairs are made 32 of K ahead of them, 16 at a time between two products (a warp that has issued
// products waits until the tensor core takes them, so all products of a block and then all its pairs would leave either
// idle): four sets of registers. Items are done whole, in an order in which blocks that run at once share activations
// and weights in L2; those that do not fill all multiprocessors are cut along K, and come first. As many blocks an item
// add up a share of its tokens each, kept in their registers while the other sums go through the workspace; or, in
// equal runs, the one that begins an item adds the others' sums to its own. Three warps feed two rings in shared memory
// through the bulk engine: packed blocks of K with their scales, and activations, 64 of k at a time. (An instruction to
// the engine takes a thread about a hundred cycles: one thread for all could not keep up.)
#pragma once
#include <type_traits>

#include "cuda/gemm/dequant_scaled.cuh"
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

constexpr int kScaledWarps = 8;  // that multiply
constexpr int kScaledThreads = 32 * kScaledWarps + 128;

#if LPQ_HAS_WGMMA

// Four eights of tokens of one half of a packed block, or two of both, to y: 1024 bytes. `staging`: as much of the
// warp's own. sums(u, p, i): of the u-th eight the accumulator i of the p-th half; `half`: the first. Tokens before
// `least` are another item's.
template <bool BF, int P, class Sums>
__device__ __forceinline__ void store_tokens(const GemmPackedArgs& g, bool vectors, int block, int half, int token0,
                                             int least, uint32_t staging, int lane, const Sums& sums) {
  constexpr int kRows = 16 * P, kChunks = 2 * P,
                kTokens = 32 / kChunks;  // of one store: rows, sixteen bytes a token, tokens
  const int n0 = block * 32 + 16 * half;
  float bias[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int n = n0 + 8 * i + (lane >> 2);
    bias[i] = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
  }
  // A token's bytes are 2 P chunks of sixteen, xor-ed with bits of its number: neither side meets a bank twice.
  const auto place = [](int token, int chunk) {
    return static_cast<uint32_t>(token * (2 * kRows) + ((chunk ^ (P == 2 ? token >> 1 & 3 : token >> 2 & 1)) << 4));
  };
  __syncwarp();
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int eight = P == 2 ? u : 2 * u + (i >> 1), chunk = i % kChunks;
      r[i] = cvt_x2<BF>(sums(eight, chunk >> 1, 2 * (chunk & 1)) + bias[chunk],
                        sums(eight, chunk >> 1, 2 * (chunk & 1) + 1) + bias[chunk]);
    }
    const int matrix = lane >> 3, token = (P == 2 ? 0 : 8 * (matrix >> 1)) + (lane & 7);
    stmatrix_x4_trans(staging + u * 512 + place(token, matrix % kChunks), r);
  }
  __syncwarp();
  const int token = lane / kChunks, chunk = lane % kChunks, n = n0 + 8 * chunk;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int m = token0 + kTokens * u + token;
    const uint4 out = ld_shared_v4(staging + u * 512 + place(token, chunk));
    if (m >= g.m || m < least) continue;
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
}

// A block's steps in order: its run of the shared items, then whole items in turn.
struct ScaledWalk {
  int first, last;  // of the shared items' steps
  int steps;        // in all
  int item, kb, end;

  __device__ __forceinline__ ScaledWalk(const ScaledArgs& a, int k_blocks) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const long long total = static_cast<long long>(a.shared_items) * k_blocks;
    first = last = 0;
    if (block < a.shared_blocks)
      first = static_cast<int>(block * total / a.shared_blocks),
      last = static_cast<int>((block + 1) * total / a.shared_blocks);
    const int whole = a.items - a.shared_items;
    steps = last - first + (block < whole ? (whole - 1 - block) / blocks + 1 : 0) * k_blocks;
    if (first < last) item = first / k_blocks, kb = first % k_blocks, end = min(k_blocks, kb + last - first);
    else item = a.shared_items + block, kb = 0, end = k_blocks;
  }
  // One step on: true where the item, or the run, ends there.
  __device__ __forceinline__ bool on() { return ++kb == end; }
  __device__ __forceinline__ void next_item(const ScaledArgs& a, int k_blocks) {
    const bool shared = item < a.shared_items;
    const int left = shared ? last - (item * k_blocks + kb) : 0;  // of the run
    item = left > 0 ? item + 1
           : shared ? a.shared_items + static_cast<int>(blockIdx.x)
                    : item + static_cast<int>(gridDim.x);
    kb = 0, end = left > 0 ? min(k_blocks, left) : k_blocks;
  }
};
// The first packed block of the strip and the first token of an item.
__device__ __forceinline__ void scaled_place(const ScaledArgs& a, int width, int tokens, int item, int& block,
                                             int& token) {
  const int group = item / (a.together * a.strips), rest = item - group * a.together * a.strips,
            tiles = min(a.together, a.token_tiles - group * a.together);
  block = rest / tiles * width, token = (group * a.together + rest % tiles) * tokens;
}

// The token that an item's boxes begin with: the last tile begins early enough to end with the tokens, since the bulk
// engine takes twice as long for rows beyond the tensor. Tokens that it shares with the tile before are multiplied
// twice and stored by that one.
__device__ __forceinline__ int first_token(const GemmPackedArgs& g, const ScaledArgs& a, int token) {
  return min(token, max(0, g.m - a.rows));
}

template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ void gemm_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps) {
  static_assert(P == 1 ? T % 4 == 0 : T % 2 == 0);
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k: [8 T tokens][128 bytes]
  constexpr int kWidth = 4 * P;       // packed blocks of a strip
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int per_block = g.groups_per_block;  // groups
  // A stage: weights [kWidth][512 B], scales and zeros [kWidth][groups][32].
  const int scales_at = kWidth * 512 * B, scale_bytes = kWidth * per_block * 64,
            zeros_at = scales_at + ((scale_bytes + 127) & ~127);
  const int zero_bytes = kWidth * per_block * 32 * g.zero_kind, stage_bytes = (zeros_at + zero_bytes + 127) & ~127;
  const uint32_t full = shared_address(dynamic_shared()), empty = full + 8 * kMostScaledStages, x_full = full + 128,
                 x_empty = x_full + 8 * kMostScaledSlabs;
  const uint32_t x_ring = full + 1024, ring = x_ring + a.slabs * kSlab;

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, kScaledWarps);
    }
    for (int s = 0; s < a.slabs; ++s) {
      mbarrier_init(x_full + 8 * s, 1);
      mbarrier_init(x_empty + 8 * s, kScaledWarps);
    }
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  if (threadIdx.x < 32) st_shared(full + 896 + 4 * threadIdx.x, 0);
  __syncthreads();

  if (warp >= kScaledWarps) {
    setmaxnreg_dec<40>();
    const int role = warp - kScaledWarps;  // 0: packed blocks; 1 and 2: activations, every other slab
    if (lane == 0 && role <= 2) {
      ScaledWalk walk(a, g.k_blocks);
      int stage = role == 2 ? 1 : 0, parity = 1, block = 0, token = 0;
      // Weights may come before the operation before has ended, activations may not.
      if (role > 0 && a.overlap) {
        griddepcontrol_wait();
        fence_proxy_async();
        if (role == 1)
          griddepcontrol_launch_dependents();  // not sooner: what ran before the newest operation has ended when the
                                               // next begins
      }
      for (int at = 0; at < walk.steps; ++at) {
        if (at == 0 || walk.kb == 0)
          scaled_place(a, kWidth, 8 * T, walk.item, block, token), token = first_token(g, a, token);
        if (role == 0) {
          const uint32_t barrier = full + 8 * stage, to = ring + stage * stage_bytes;
          const int group = g.channel ? 0 : walk.kb * per_block;
          mbarrier_wait_parity(empty + 8 * stage, parity);
          mbarrier_arrive_expect_tx(
              barrier, scales_at + scale_bytes + zero_bytes);  // boxes are whole beyond the tensors too, with zeros
          tma_load_3d(to, &maps.weights, 0, walk.kb * B, block, barrier);
          tma_load_3d(to + scales_at, &maps.scales, 0, group, block, barrier);
          if (g.zero_kind) tma_load_3d(to + zeros_at, &maps.zeros, 0, group, block, barrier);
          if (++stage == g.stages) stage = 0, parity ^= 1;
        } else {
          const uint32_t barrier = x_full + 8 * stage;
          mbarrier_wait_parity(x_empty + 8 * stage, parity);
          mbarrier_arrive_expect_tx(barrier, a.rows * 128);
          tma_load_3d(x_ring + stage * kSlab, &maps.x, 0, token, 2 * walk.kb + role - 1, barrier);
          stage += 2;
          if (stage >= a.slabs) stage -= a.slabs, parity ^= 1;
        }
        if (walk.on()) walk.next_item(a, g.k_blocks);
      }
    }
  } else {
    setmaxnreg_inc<232>();
    const uint32_t unknown = ld_shared(full + 896 + 4 * lane);
    const ScaledCast<B, BF, Integer, Zeros> cast(g, a, unknown);
    const int slot = P == 1 ? warp & 3 : warp, first_half = P == 1 ? warp >> 2 : 0;
    const uint32_t staging = ring + g.stages * stage_bytes + warp * kScaledStaging;
    const uint32_t words = (ring + slot * 512 * B + lane * 16) ^ unknown;
    const uint32_t scales = (ring + scales_at + slot * per_block * 64 + (lane >> 2) * 8) ^ unknown;
    const uint32_t zeros = ring + zeros_at + slot * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind;
    ScaledWalk walk(a, g.k_blocks);
    float sum[P][T][4];
    uint32_t pairs[4][P][4], q[4 * B], scale_words[2][P], zero_words[2][P], scale[2 * P], rest[2 * P], high[2 * P],
        low[2 * P];
    int stage = 0, parity = 0, slab = 0, slab_parity = 0, slab_before = 0, step = 0;

    const int chunks = 4 / per_block;  // of a group
    // The steps of an item, or of as much of it as is this block's. Half: the first of the P 16-row halves (a constant,
    // since it decides where in a word codes lie).
    const auto multiply_item = [&](auto half) {
      constexpr int kHalf = decltype(half)::value;
      // The words of chunk c that no chunk before it needed, and its scales and zero points; `at`: the stage's bytes
      // from the ring's begin.
      const auto fetch = [&](uint32_t at, int c) {
#pragma unroll
        for (int v = 0; v < B; ++v)
          if (v >= (c * B + 3) / 4 && v < ((c + 1) * B + 3) / 4) {
            const uint4 word = ld_shared_v4(words + at + v * 512);
            q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
          }
        if (c & (chunks - 1)) return;
        const int group = c * per_block >> 2;
        if constexpr (P == 2) ld_shared_v2(scale_words[c & 1][0], scale_words[c & 1][1], scales + at + group * 64);
        else scale_words[c & 1][0] = ld_shared(scales + at + group * 64 + 4 * kHalf);
        if constexpr (Zeros) {
          if (g.zero_kind == 1) {
            zero_words[c & 1][0] = ld_shared(zeros + at + group * 32);
          } else if (g.zero_kind == 2) {
            if constexpr (P == 2) ld_shared_v2(zero_words[c & 1][0], zero_words[c & 1][1], zeros + at + group * 64);
            else zero_words[c & 1][0] = ld_shared(zeros + at + group * 64 + 4 * kHalf);
          }
        }
      };
      // What chunk c is multiplied by, and what is taken from it first; the i-th row class is 2 kHalf + i.
      const auto factors = [&](int c) {
        if (c & (chunks - 1)) return;
        const uint32_t (&halves)[P] = scale_words[c & 1];
        if (BF || g.scale_bf16) {
#pragma unroll
          for (int i = 0; i < 2 * P; ++i) {
            const uint16_t bits = static_cast<uint16_t>(halves[i >> 1] >> 16 * (i & 1));
            if constexpr (BF) {
              // A scale in f16 is the sum of two in bf16.
              const float s = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
              const uint16_t most = from_float<true>(s);
              scale[i] = twice(most), rest[i] = twice(from_float<true>(s - to_float(most, true)));
            } else {
              scale[i] = twice(from_float<false>(to_float(bits, true)));
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2 * P; ++i) scale[i] = i & 1 ? upper_twice(halves[i >> 1]) : lower_twice(halves[i >> 1]);
        }
        if constexpr (Zeros) {
#pragma unroll
          for (int i = 0; i < 2 * P; ++i) {
            float zero = a.zero;
            if (g.zero_kind == 1) zero = static_cast<float>((zero_words[c & 1][0] >> 8 * (2 * kHalf + i)) & 255);
            else if (g.zero_kind == 2)
              zero = to_float(static_cast<uint16_t>(zero_words[c & 1][i >> 1] >> 16 * (i & 1)), false);
            const uint16_t most = from_float<BF>(-zero);
            high[i] = twice(most);
            if constexpr (BF) low[i] = twice(from_float<true>(-zero - to_float(most, true)));
          }
        }
      };
      // The pairs of 16 of K, the j-th of a packed block, into set j & 3.
      const auto make_pairs = [&](int j) {
        const int c = j >> 1, ks = j & 1;
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int own = 2 * p + (i & 1);
            const uint32_t v = cast.value(q + c * B, 4 * (2 * ks + (i >> 1)) + 2 * kHalf + own, Zeros ? high[own] : 0,
                                          Zeros && BF ? low[own] : 0);
            if constexpr (BF) pairs[j & 3][p][i] = fma_x2<true>(v, scale[own], mul_x2<true>(v, rest[own]));
            else pairs[j & 3][p][i] = mul_x2<false>(v, scale[own]);
          }
      };
      const auto release_slab = [&](int which) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(x_empty + 8 * which);
      };

      if (step == 0) {
        mbarrier_wait_parity(full, 0);
        fetch(0, 0);
        factors(0);
        make_pairs(0), make_pairs(1);
        fetch(0, 1);
      }
      bool begins = true, ends = false;
      while (!ends) {
        const uint32_t at = stage * stage_bytes;
        const int next = stage + 1 == g.stages ? 0 : stage + 1;
        int first_slab = 0;
        uint64_t x0 = 0;
        const auto x = [&x0](uint32_t further) {
          return (x0 & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(x0) + further);
        };
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if ((c & 1) == 0) {
            mbarrier_wait_parity(x_full + 8 * slab, slab_parity);
            x0 = wgmma_descriptor(x_ring + slab * kSlab);
          }
          wgmma_fence();
#pragma unroll
          for (int ks = 0; ks < 2; ++ks)
#pragma unroll
            for (int p = 0; p < P; ++p)
              wgmma_k16<BF, T>(sum[p], pairs[2 * (c & 1) + ks][p], x((c & 1) * 4 + ks * 2), c > 0 || ks > 0 || !begins);
          wgmma_commit();
          wgmma_wait<1>();  // the registers of the products of the chunk before are free, and at c = 0 and 2 the slab
                            // before, too
          if (c == 0 && step > 0) release_slab(slab_before);
          if (c == 2) {
            release_slab(first_slab);
            if (lane == 0) mbarrier_arrive(empty + 8 * stage);  // the last words and scales came at c = 1
            if (step + 1 < walk.steps) mbarrier_wait_parity(full + 8 * next, next == 0 ? parity ^ 1 : parity);
          }
          // Words a chunk ahead of the pairs, pairs a chunk ahead of the products.
          // After the last step what is fetched and made is never used.
          if (!(B == 1 && c == 2)) fetch(c < 2 ? at : next * stage_bytes, (c + 2) % 4);
          factors((c + 1) % 4);
          make_pairs((2 * c + 2) % 8), make_pairs((2 * c + 3) % 8);
          if (B == 1 && c == 2) fetch(next * stage_bytes, 0);  // one vector holds all chunks
          if (c & 1) {
            (c == 1 ? first_slab : slab_before) = slab;
            if (++slab == a.slabs) slab = 0, slab_parity ^= 1;
          }
        }
        begins = false;
        ++step;
        if (++stage == g.stages) stage = 0, parity ^= 1;
        ends = walk.on();
      }
      wgmma_wait<0>();
    };

    int began = walk.kb;
    while (step < walk.steps) {
      if (P == 2 || first_half == 0) multiply_item(std::integral_constant<int, 0>{});
      else multiply_item(std::integral_constant<int, 1>{});
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i) keep_here(sum[p][t][i]);
      int block0, token0;
      scaled_place(a, kWidth, 8 * T, walk.item, block0, token0);
      const int first = first_token(g, a, token0);
      const bool mine = block0 + slot < g.n_blocks;
      // Whether any of so many eights of tokens are to be stored.
      const auto wanted = [&](int t, int eights) { return first + 8 * t < g.m && first + 8 * (t + eights) > token0; };
      // The eights of tokens from `low_t` to `high_t` are this block's to store, whole where nobody shares the item.
      constexpr int kStored = 4 / P;  // eights a store
      int low_t = 0, high_t = T;
      if (walk.kb - began != g.k_blocks) {
        const long long total = static_cast<long long>(a.shared_items) * g.k_blocks,
                        begin = static_cast<long long>(walk.item) * g.k_blocks;
        const int from = static_cast<int>(((begin + 1) * a.shared_blocks - 1) / total),
                  to = static_cast<int>(((begin + g.k_blocks) * a.shared_blocks - 1) / total);
        const int own = static_cast<int>(blockIdx.x), sharers = to - from + 1, turn = own - from;
        if (a.owners) high_t = began == 0 ? T : 0;
        else low_t = T / kStored * turn / sharers * kStored, high_t = T / kStored * (turn + 1) / sharers * kStored;
        unsigned* const counter = g.counters + 2 * walk.item;
        // A block's sums: [warp][eight of tokens][half][lane] float4.
        const auto sums_of = [&](int block) {
          return reinterpret_cast<float4*>(g.partial) +
                 (static_cast<long long>(block) * kScaledWarps + warp) * (T * P * 32) + lane;
        };
        if (high_t - low_t < T) {
          float4* const kept = sums_of(own);
          if (mine) {
#pragma unroll
            for (int t = 0; t < T; ++t)
              if ((t < low_t || t >= high_t) && wanted(t, 1)) {
#pragma unroll
                for (int p = 0; p < P; ++p)
                  __stcg(kept + (t * P + p) * 32, make_float4(sum[p][t][0], sum[p][t][1], sum[p][t][2], sum[p][t][3]));
              }
          }
          __threadfence();
          bar_sync(1, 32 * kScaledWarps);
          if (threadIdx.x == 0) atomicAdd(counter, 1u);
        }
        // All blocks of the grid run at once, and those that are waited for do not wait before they have written, so
        // nobody waits for ever.
        const unsigned awaited = static_cast<unsigned>(a.owners ? to - own : sharers);
        if (high_t > low_t) {
          if (threadIdx.x == 0)
            while (ld_acquire(counter) < awaited) {
            }
          bar_sync(1, 32 * kScaledWarps);
        }
        // For the next launch; of blocks that go on together the last.
        if (threadIdx.x == 0 && (a.owners ? high_t > low_t : atomicAdd(counter + 1, 1u) + 1 == awaited))
          counter[0] = counter[1] = 0;
        constexpr int kBatch = 8 / P;
        for (int c = from; mine && high_t > low_t && c <= to; ++c) {
          if (c == own) continue;
          const float4* const part = sums_of(c);
#pragma unroll
          for (int t0 = 0; t0 < T; t0 += kBatch) {
            if (t0 + kBatch <= low_t || t0 >= high_t || !wanted(t0, kBatch)) continue;
            float4 v[kBatch][P];
#pragma unroll
            for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
              for (int p = 0; p < P; ++p)
                v[t - t0][p] = t >= low_t && t < high_t ? __ldcg(part + (t * P + p) * 32) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
              for (int p = 0; p < P; ++p)
                sum[p][t][0] += v[t - t0][p].x, sum[p][t][1] += v[t - t0][p].y, sum[p][t][2] += v[t - t0][p].z,
                    sum[p][t][3] += v[t - t0][p].w;
          }
        }
      }
      if (mine) {
#pragma unroll
        for (int t = 0; t < T; t += kStored)
          if (t >= low_t && t < high_t && wanted(t, kStored))
            store_tokens<BF, P>(g, a.vectors, block0 + slot, first_half, first + 8 * t, token0, staging, lane,
                                [&](int u, int p, int i) { return sum[p][t + u][i]; });
      }
      walk.next_item(a, g.k_blocks);
      began = walk.kb;
    }
  }
}

#endif

}  // namespace lpq::cuda

// kind c: constant whole zero points, and floats; z: all else. tiles: eights of tokens; halves: P.
#if LPQ_HAS_WGMMA
#define LPQ_GEMM_SCALED(name, kind, tiles, halves, bits, zeros, bf, integer)                           \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kScaledThreads, 1)                           \
      lpq_gemm_##name##_##kind##tiles##x##halves(const __grid_constant__ lpq::cuda::GemmPackedArgs g,  \
                                                 const __grid_constant__ lpq::cuda::ScaledArgs a,      \
                                                 const __grid_constant__ lpq::cuda::PackedMaps maps) { \
    lpq::cuda::gemm_scaled<bits, tiles, halves, zeros, bf, integer>(g, a, maps);                       \
  }
#else
#define LPQ_GEMM_SCALED(name, kind, tiles, halves, bits, zeros, bf, integer)
#endif
