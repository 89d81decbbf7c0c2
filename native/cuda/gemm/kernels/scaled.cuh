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
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/dequant_scaled.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/gemm/pipeline.cuh"
#include "cuda/gemm/stream_k.cuh"
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
    const EvenRuns runs(a.shared_items, k_blocks, a.shared_blocks);
    first = last = 0;
    if (block < a.shared_blocks) first = runs.first(block), last = runs.first(block + 1);
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

// A stage: weights [4 P packed blocks][512 B], scales and zeros [4 P][groups][32].
template <int B, int P>
struct ScaledStage {
  static constexpr int kWidth = 4 * P;  // packed blocks of a strip
  static constexpr int scales_at = kWidth * 512 * B;
  int zeros_at, filled, bytes;

  __device__ __forceinline__ explicit ScaledStage(const GemmPackedArgs& g) {
    const int scale_bytes = kWidth * g.groups_per_block * 64,
              zero_bytes = kWidth * g.groups_per_block * 32 * g.zero_kind;
    zeros_at = scales_at + ((scale_bytes + 127) & ~127);
    filled = scales_at + scale_bytes + zero_bytes, bytes = (zeros_at + zero_bytes + 127) & ~127;
  }
};

// All steps of the block, by one thread each: role 0 packed blocks, 1 and 2 activations, every other slab. Weights may
// come before the operation before has ended, activations may not.
template <int B, int T, int P>
__device__ __forceinline__ void produce(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps,
                                        const ScaledStage<B, P>& place, const TmaPipeline& weights,
                                        const TmaPipeline& activations, uint32_t ring, uint32_t x_ring, int role) {
  ScaledWalk walk(a, g.k_blocks);
  int block = 0, token = 0;
  PipelineState at;
  if (role == 2) at.stage = 1;
  if (role > 0 && a.overlap) {
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    if (role == 1) griddepcontrol_launch_dependents();
  }
  for (int step = 0; step < walk.steps; ++step) {
    if (step == 0 || walk.kb == 0)
      scaled_place(a, 4 * P, 8 * T, walk.item, block, token), token = first_token(g, a, token);
    if (role == 0) {
      const uint32_t to = ring + at.stage * place.bytes;
      const int group = g.channel ? 0 : walk.kb * g.groups_per_block;
      weights.producer_acquire(at);
      // Boxes are whole beyond the tensors too, with zeros.
      const uint32_t full = weights.producer_commit(at.stage, place.filled);
      tma_load_3d(to, &maps.weights, 0, walk.kb * B, block, full);
      tma_load_3d(to + place.scales_at, &maps.scales, 0, group, block, full);
      if (g.zero_kind) tma_load_3d(to + place.zeros_at, &maps.zeros, 0, group, block, full);
      at.advance(g.stages);
    } else {
      activations.producer_acquire(at);
      const uint32_t full = activations.producer_commit(at.stage, a.rows * 128);
      tma_load_3d(x_ring + at.stage * (8 * T * 128), &maps.x, 0, token, 2 * walk.kb + role - 1, full);
      at.stage += 2;
      if (at.stage >= a.slabs) at.stage -= a.slabs, at.parity ^= 1;
    }
    if (walk.on()) walk.next_item(a, g.k_blocks);
  }
}

// A warp's products. Words come a chunk of 32 k ahead of the pairs, pairs a chunk ahead of the products.
template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
struct ScaledMultiplier {
  const GemmPackedArgs& g;
  const ScaledArgs& a;
  const ScaledCast<B, BF, Integer, Zeros>& cast;
  const TmaPipeline weights, activations;
  const uint32_t x_ring, words, scales, zeros;  // where this lane's are in the first stage
  const int stage_bytes, lane, chunks;          // chunks of a group
  ScaledWalk& walk;
  PipelineState at = {}, x_at = {};  // stage of packed blocks, slab of 64 k of activations
  int slab_before = 0, step = 0;
  float sum[P][T][4];
  uint32_t pairs[4][P][4], q[4 * B], scale_words[2][P], zero_words[2][P], scale[2 * P], rest[2 * P], high[2 * P],
      low[2 * P];

  // The steps of an item, or of as much of it as is this block's. Half: the first of the P 16-row halves (a constant,
  // since it decides where in a word codes lie).
  template <int Half>
  __device__ __forceinline__ void multiply_item() {
    if (step == 0) {
      mbarrier_wait_parity(weights.full, 0);
      fetch<Half>(0, 0);
      factors<Half>(0);
      make_pairs<Half>(0), make_pairs<Half>(1);
      fetch<Half>(0, 1);
    }
    bool begins = true, ends = false;
    while (!ends) {
      multiply_step<Half>(begins);
      begins = false;
      ++step;
      at.advance(g.stages);
      ends = walk.on();
    }
    wgmma_wait<0>();
    keep_sums(sum);
  }

 private:
  __device__ __forceinline__ void release_slab(int which) const { activations.consumer_release(which, lane); }
  // A packed block of K.
  template <int Half>
  __device__ __forceinline__ void multiply_step(bool begins) {
    const uint32_t from = at.stage * stage_bytes;
    const int next = at.stage + 1 == g.stages ? 0 : at.stage + 1;
    int first_slab = 0;
    uint64_t x0 = 0;
    const auto x = [&x0](uint32_t further) {
      return (x0 & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(x0) + further);
    };
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if ((c & 1) == 0) {
        activations.consumer_wait(x_at);
        x0 = wgmma_descriptor(x_ring + x_at.stage * (8 * T * 128));
      }
      wgmma_fence();
#pragma unroll
      for (int ks = 0; ks < 2; ++ks)
#pragma unroll
        for (int p = 0; p < P; ++p)
          wgmma_k16<BF, T>(sum[p], pairs[2 * (c & 1) + ks][p], x((c & 1) * 4 + ks * 2), c > 0 || ks > 0 || !begins);
      wgmma_commit();
      // The registers of the products of the chunk before are free, and at c = 0 and 2 the slab before, too.
      wgmma_wait<1>();
      if (c == 0 && step > 0) release_slab(slab_before);
      if (c == 2) {
        release_slab(first_slab);
        if (lane == 0) mbarrier_arrive(weights.empty + 8 * at.stage);  // the last words and scales came at c = 1
        if (step + 1 < walk.steps) mbarrier_wait_parity(weights.full + 8 * next, next == 0 ? at.parity ^ 1 : at.parity);
      }
      // After the last step what is fetched and made is never used.
      if (!(B == 1 && c == 2)) fetch<Half>(c < 2 ? from : next * stage_bytes, (c + 2) % 4);
      factors<Half>((c + 1) % 4);
      make_pairs<Half>((2 * c + 2) % 8), make_pairs<Half>((2 * c + 3) % 8);
      if (B == 1 && c == 2) fetch<Half>(next * stage_bytes, 0);  // one vector holds all chunks
      if (c & 1) {
        (c == 1 ? first_slab : slab_before) = x_at.stage;
        x_at.advance(a.slabs);
      }
    }
  }
  // The words of chunk c that no chunk before it needed, and its scales and zero points; `from`: the stage's bytes from
  // the ring's begin.
  template <int Half>
  __device__ __forceinline__ void fetch(uint32_t from, int c) {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (v >= (c * B + 3) / 4 && v < ((c + 1) * B + 3) / 4) load_vector<B>(q, words + from, v);
    if (c & (chunks - 1)) return;
    const int group = c * g.groups_per_block >> 2;
    if constexpr (P == 2) ld_shared_v2(scale_words[c & 1][0], scale_words[c & 1][1], scales + from + group * 64);
    else scale_words[c & 1][0] = ld_shared(scales + from + group * 64 + 4 * Half);
    if constexpr (Zeros) {
      if (g.zero_kind == 1) {
        zero_words[c & 1][0] = ld_shared(zeros + from + group * 32);
      } else if (g.zero_kind == 2) {
        if constexpr (P == 2) ld_shared_v2(zero_words[c & 1][0], zero_words[c & 1][1], zeros + from + group * 64);
        else zero_words[c & 1][0] = ld_shared(zeros + from + group * 64 + 4 * Half);
      }
    }
  }
  // What chunk c is multiplied by, and what is taken from it first; the i-th row class is 2 Half + i.
  template <int Half>
  __device__ __forceinline__ void factors(int c) {
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
        if (g.zero_kind == 1) zero = static_cast<float>((zero_words[c & 1][0] >> 8 * (2 * Half + i)) & 255);
        else if (g.zero_kind == 2)
          zero = to_float(static_cast<uint16_t>(zero_words[c & 1][i >> 1] >> 16 * (i & 1)), false);
        const uint16_t most = from_float<BF>(-zero);
        high[i] = twice(most);
        if constexpr (BF) low[i] = twice(from_float<true>(-zero - to_float(most, true)));
      }
    }
  }
  // The pairs of 16 of K, the j-th of a packed block, into set j & 3.
  template <int Half>
  __device__ __forceinline__ void make_pairs(int j) {
    const int c = j >> 1, ks = j & 1;
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int own = 2 * p + (i & 1);
        const uint32_t v = cast.value(q + c * B, PackedChunk::pair(ks, Half + p, i), Zeros ? high[own] : 0,
                                      Zeros && BF ? low[own] : 0);
        if constexpr (BF) pairs[j & 3][p][i] = fma_x2<true>(v, scale[own], mul_x2<true>(v, rest[own]));
        else pairs[j & 3][p][i] = mul_x2<false>(v, scale[own]);
      }
  }
};

// What becomes of a warp's sums of an item. Of a shared one its blocks add up eights of tokens: all those of the block
// that begins it (owners), or each a share.
template <int T, int P, bool BF>
struct ScaledEpilogue {
  static constexpr int kStored = 4 / P;  // eights a store
  const GemmPackedArgs& g;
  const ScaledArgs& a;
  const uint32_t staging;
  const int lane, warp, slot, half;
  float (&sum)[P][T][4];

  // `began`, `end`: the block's part of the item along K.
  __device__ __forceinline__ void finish(int item, int began, int end) {
    int block0, token0;
    scaled_place(a, 4 * P, 8 * T, item, block0, token0);
    const int first = first_token(g, a, token0);
    const bool mine = block0 + slot < g.n_blocks;
    // The eights from `low` to `high` are this block's to store, whole where nobody shares the item.
    int low = 0, high = T;
    if (end - began != g.k_blocks) fixup(item, began, first, token0, mine, low, high);
    if (mine) {
#pragma unroll
      for (int t = 0; t < T; t += kStored)
        if (t >= low && t < high && wanted(t, kStored, first, token0))
          store_tokens<BF, P>(g, a.vectors, block0 + slot, half, first + 8 * t, token0, staging, lane,
                              [&](int u, int p, int i) { return sum[p][t + u][i]; });
    }
  }

 private:
  // Whether any of so many eights of tokens are to be stored.
  __device__ __forceinline__ bool wanted(int t, int eights, int first, int token0) const {
    return first + 8 * t < g.m && first + 8 * (t + eights) > token0;
  }
  // A block's sums: [warp][eight of tokens][half][lane] float4.
  __device__ __forceinline__ float4* sums_of(int block) const {
    return reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(block) * kScaledWarps + warp) * (T * P * 32) +
           lane;
  }
  __device__ __forceinline__ void fixup(int item, int began, int first, int token0, bool mine, int& low, int& high) {
    const TileSharers sharers = EvenRuns(a.shared_items, g.k_blocks, a.shared_blocks).sharers(item);
    const int own = static_cast<int>(blockIdx.x), turn = own - sharers.from;
    if (a.owners) high = began == 0 ? T : 0;
    else
      low = T / kStored * turn / sharers.count() * kStored, high = T / kStored * (turn + 1) / sharers.count() * kStored;
    const auto sync = [] { bar_sync(1, 32 * kScaledWarps); };
    unsigned* const counter = g.counters + 2 * item;
    if (high - low < T) {
      if (mine) keep_part(own, low, high, first, token0);
      publish_part(counter, threadIdx.x == 0, sync);
    }
    // All blocks of the grid run at once, and those that are waited for do not wait before they have written, so
    // nobody waits for ever.
    const unsigned awaited = static_cast<unsigned>(a.owners ? sharers.to - own : sharers.count());
    if (high > low) {
      if (threadIdx.x == 0) wait_for_count(counter, awaited);
      sync();
    }
    // For the next launch; of blocks that go on together the last.
    if (threadIdx.x == 0 && (a.owners ? high > low : atomicAdd(counter + 1, 1u) + 1 == awaited))
      counter[0] = counter[1] = 0;
    for (int c = sharers.from; mine && high > low && c <= sharers.to; ++c)
      if (c != own) add_part(c, low, high, first, token0);
  }
  // The eights that others store.
  __device__ __forceinline__ void keep_part(int own, int low, int high, int first, int token0) const {
    float4* const kept = sums_of(own);
#pragma unroll
    for (int t = 0; t < T; ++t)
      if ((t < low || t >= high) && wanted(t, 1, first, token0)) {
#pragma unroll
        for (int p = 0; p < P; ++p) __stcg(kept + (t * P + p) * 32, sum_vector(sum, p * T + t));
      }
  }
  __device__ __forceinline__ void add_part(int block, int low, int high, int first, int token0) {
    constexpr int kBatch = 8 / P;
    const float4* const part = sums_of(block);
#pragma unroll
    for (int t0 = 0; t0 < T; t0 += kBatch) {
      if (t0 + kBatch <= low || t0 >= high || !wanted(t0, kBatch, first, token0)) continue;
      float4 v[kBatch][P];
#pragma unroll
      for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
        for (int p = 0; p < P; ++p)
          v[t - t0][p] = t >= low && t < high ? __ldcg(part + (t * P + p) * 32) : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int t = t0; t < t0 + kBatch && t < T; ++t)
#pragma unroll
        for (int p = 0; p < P; ++p) add_vector(sum, p * T + t, v[t - t0][p]);
    }
  }
};

template <int B, int T, int P, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ void gemm_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps) {
  static_assert(P == 1 ? T % 4 == 0 : T % 2 == 0);
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k: [8 T tokens][128 bytes]
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int per_block = g.groups_per_block;  // groups
  const ScaledStage<B, P> place(g);
  const uint32_t barriers = shared_address(dynamic_shared());
  const TmaPipeline weights{barriers, barriers + 8 * kMostScaledStages},
      activations{barriers + 128, barriers + 128 + 8 * kMostScaledSlabs};
  const uint32_t x_ring = barriers + 1024, ring = x_ring + a.slabs * kSlab;

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) weights.init(s, kScaledWarps);
    for (int s = 0; s < a.slabs; ++s) activations.init(s, kScaledWarps);
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  if (threadIdx.x < 32) st_shared(barriers + 896 + 4 * threadIdx.x, 0);
  __syncthreads();

  if (warp >= kScaledWarps) {
    setmaxnreg_dec<40>();
    if (lane == 0 && warp - kScaledWarps <= 2)
      produce<B, T, P>(g, a, maps, place, weights, activations, ring, x_ring, warp - kScaledWarps);
    return;
  }

  setmaxnreg_inc<232>();
  const uint32_t unknown = ld_shared(barriers + 896 + 4 * lane);
  const ScaledCast<B, BF, Integer, Zeros> cast(g, a, unknown);
  const int slot = P == 1 ? warp & 3 : warp, first_half = P == 1 ? warp >> 2 : 0;
  ScaledWalk walk(a, g.k_blocks);
  ScaledMultiplier<B, T, P, Zeros, BF, Integer> multiplier{
      g,
      a,
      cast,
      weights,
      activations,
      x_ring,
      (ring + slot * 512 * B + lane * 16) ^ unknown,
      (ring + place.scales_at + slot * per_block * 64 + (lane >> 2) * 8) ^ unknown,
      ring + place.zeros_at + slot * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind,
      place.bytes,
      lane,
      4 / per_block,
      walk};
  ScaledEpilogue<T, P, BF> epilogue{
      g, a, ring + g.stages * place.bytes + warp * kScaledStaging, lane, warp, slot, first_half, multiplier.sum};
  int began = walk.kb;
  while (multiplier.step < walk.steps) {
    if (P == 2 || first_half == 0) multiplier.template multiply_item<0>();
    else multiplier.template multiply_item<1>();
    epilogue.finish(walk.item, began, walk.kb);
    walk.next_item(a, g.k_blocks);
    began = walk.kb;
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
