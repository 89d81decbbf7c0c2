// The same product as gemm_wide.cuh for many tokens, with MARLIN's arithmetic: w = (code - zero) * scale rounded to f16 or bf16 once, as if
// weights were dequantized first. Sums then need no scales, so the accumulators have all the registers:
//  - a block takes 256 rows and 128 tokens, two warpgroups that multiply 128 rows each (a packed block a warp, twice 16 rows);
//  - while products run, pairs are made 32 of K ahead of them, 16 at a time between two products (a warp that has issued products
//    waits until the tensor core takes them, so all products of a block and then all its pairs would leave either idle): four sets of registers;
//  - items are done whole, in an order in which blocks that run at once share activations and weights in L2; those that do not
//    fill all multiprocessors are cut along K into equal runs, which come first. Where two or three share an item, the one that begins it
//    adds the others' sums to its own; where more do, all add up a share each at the very end. In the order of K, always.
// One warp feeds a ring in shared memory through the bulk engine, a packed block of K a stage.
#pragma once
#include <type_traits>

#include "cuda/kernels/gemm_wide.cuh"
#include "cuda/kernels/wide_scaled.h"

namespace lpq::cuda {

constexpr int kScaledThreads = 384;

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Pairs of weights from the words of a lane's chunk. Zeros: zero points that differ between groups or are no whole numbers.
template <int B, bool BF, bool Integer, bool Zeros>
struct ScaledCast {
  using Cast = std::conditional_t<Integer, IntCast<B, BF>, FloatCast<B, BF>>;
  static constexpr int kClass = Cast::kStarts == 1 ? 1 : 3;  // row classes r and r + 2 may be alike
  Cast cast;
  uint32_t magic[4];  // f16 integers: 1024 and the sign's bit where row class r has it
  uint32_t minus[4];  // integers: minus what the code comes with, and minus the constant zero point
  uint32_t power;     // f16 floats: 2^(15 - bias)

  // `unknown`: 0, which the compiler does not know: what it knows to be alike in all lanes it keeps apart, and copies it for each use.
  __device__ __forceinline__ ScaledCast(const GemmPackedArgs& g, const ScaledArgs& a, uint32_t unknown) : cast(g.is_signed != 0, g.exponent) {
    if constexpr (Integer) {
      const float take = a.lift + (Zeros ? 0.0f : a.zero);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float part = 1.0f / static_cast<float>(1 << Cast::shift(r));
        magic[r] = twice(0x6400) ^ (B > 1 && g.is_signed ? twice(1u << (B - 1)) << Cast::shift(r) : 0);
        minus[r] = twice(from_float<BF>(-((BF ? Cast::bias() : 1024.0f) * part + take)));
        minus[r] ^= unknown, magic[r] ^= unknown;
      }
    } else if constexpr (!BF) {
      power = twice(from_float<false>(cast.unpower)) ^ unknown;
    }
  }

  // Code less zero point, or the float's value, of pair i of a chunk; exact but where `low` or fractions of zero points are.
  __device__ __forceinline__ uint32_t value(const uint32_t* q, int i, const uint32_t (&high)[4], const uint32_t (&low)[4]) const {
    const int r = i & 3;
    if constexpr (!Integer) {
      const uint32_t v = cast.pair(q, i);
      return BF ? v : multiply_pairs<false>(v, power);
    } else {
      const int s = Cast::shift(r);
      uint32_t v;
      if constexpr (BF) {
        v = cast.pair(q, i);
      } else {
        using F = Fields<B>;
        const uint32_t moved_word = F::whole(i) ? moved(q[F::word(i)], F::offset(i) - s) : joined<B>(q, i, s);
        v = (moved_word & twice(((1u << B) - 1) << s)) ^ magic[r & kClass];
      }
      const uint32_t part = twice(BF ? static_cast<uint32_t>(127 - s) << 7 : static_cast<uint32_t>(15 - s) << 10);
      v = s == 0 ? add_pairs<BF>(v, minus[r & kClass]) : fma_pairs<BF>(v, part, minus[r & kClass]);
      if constexpr (Zeros) {
        v = add_pairs<BF>(v, high[r]);
        if constexpr (BF) v = add_pairs<BF>(v, low[r]);
      }
      return v;
    }
  }
};

// Four times eight tokens of a packed block's 32 rows to y; `staging`: kScaledStaging bytes of the warp's own.
template <bool BF, int Units, class Sums>
__device__ __forceinline__ void store_tokens(const GemmPackedArgs& g, bool vectors, int block, int token0, uint32_t staging, int lane, const Sums& sums) {
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = block * 32 + 8 * i + (lane >> 2);
    bias[i] = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
  }
  const int row = lane & 7;
  __syncwarp();
#pragma unroll
  for (int u = 0; u < Units; ++u) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = pair_of<BF>(sums(u, i >> 1, 2 * (i & 1)) + bias[i], sums(u, i >> 1, 2 * (i & 1) + 1) + bias[i]);
    // Token j's 64 bytes are four chunks, xor-ed with j / 2: neither side meets a bank twice.
    store_matrices_transposed(staging + u * 512 + row * 64 + (((lane >> 3) ^ (row >> 1)) << 4), r);
  }
  __syncwarp();
  const int token = lane >> 2, chunk = lane & 3, n = block * 32 + 8 * chunk;
#pragma unroll
  for (int u = 0; u < Units; ++u) {
    const int m = token0 + 8 * u + token;
    const uint4 out = load_shared16(staging + u * 512 + token * 64 + ((chunk ^ (token >> 1)) << 4));
    if (m >= g.m) continue;
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
    if (block < a.shared_blocks) first = static_cast<int>(block * total / a.shared_blocks), last = static_cast<int>((block + 1) * total / a.shared_blocks);
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
    item = left > 0 ? item + 1 : shared ? a.shared_items + static_cast<int>(blockIdx.x) : item + static_cast<int>(gridDim.x);
    kb = 0, end = left > 0 ? min(k_blocks, left) : k_blocks;
  }
};
// The first packed block of the strip and the first token of an item.
__device__ __forceinline__ void scaled_place(const ScaledArgs& a, int tokens, int item, int& block, int& token) {
  const int group = item / (a.together * a.strips), rest = item - group * a.together * a.strips, tiles = min(a.together, a.token_tiles - group * a.together);
  block = rest / tiles * a.width, token = (group * a.together + rest % tiles) * tokens;
}

template <int B, int T, bool Zeros, bool BF, bool Integer>
__device__ __forceinline__ void gemm_scaled(const GemmPackedArgs& g, const ScaledArgs& a, const PackedMaps& maps) {
  constexpr int kSlab = 8 * T * 128;  // activations of 64 k
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int per_block = g.groups_per_block;                 // groups
  // A stage: activations [2][8 T tokens][128 bytes], weights [width][512 B], scales and zeros [width][groups][32].
  const int weights_at = 2 * kSlab, scales_at = weights_at + a.width * 512 * B, scale_bytes = a.width * per_block * 64;
  const int zeros_at = scales_at + ((scale_bytes + 127) & ~127), zero_bytes = a.width * per_block * 32 * g.zero_kind;
  const int stage_bytes = (zeros_at + zero_bytes + 1023) & ~1023;
  const uint32_t full = dynamic_shared_address(), empty = full + 8 * kMostScaledStages, ring = full + 1024;

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, warps);
    }
    fence_barriers();
  }
  if (threadIdx.x < 32) store_shared4(full + 896 + 4 * threadIdx.x, 0);
  __syncthreads();

  if (warp >= warps) {
    registers_down<24>();
    if (warp == warps && lane == 0) {
      const int bytes = scales_at + scale_bytes + zero_bytes;
      ScaledWalk to_fetch(a, g.k_blocks), walk = to_fetch;
      int stage = 0, parity = 0, begun = 0, nb, token;
      const auto weights = [&](int item, int kb, int to_stage) {
        const uint32_t barrier = full + 8 * to_stage, to = ring + to_stage * stage_bytes;
        const int group = g.channel ? 0 : kb * per_block;
        scaled_place(a, 8 * T, item, nb, token);
        barrier_expect(barrier, bytes);  // boxes are whole beyond the tensors too, with zeros
        copy_box(to + weights_at, &maps.weights, 0, kb * B, nb, barrier);
        copy_box(to + scales_at, &maps.scales, 0, group, nb, barrier);
        if (g.zero_kind) copy_box(to + zeros_at, &maps.zeros, 0, group, nb, barrier);
      };
      // Weights may come before the operation before has ended.
      if (a.overlap) {
        begun = min(g.stages, walk.steps);
        for (int s = 0; s < begun; ++s) {
          weights(to_fetch.item, to_fetch.kb, s);
          if (to_fetch.on()) to_fetch.next_item(a, g.k_blocks);
        }
        await_operation_before();
        launch_next_operation();  // not sooner: what ran before the newest operation has ended when the next begins
      }
      for (int at = 0; at < walk.steps; ++at) {
        if (at >= begun) {
          barrier_wait(empty + 8 * stage, parity ^ 1);
          weights(walk.item, walk.kb, stage);
        } else {
          scaled_place(a, 8 * T, walk.item, nb, token);
        }
        copy_box(ring + stage * stage_bytes, &maps.x, 0, token, 2 * walk.kb, full + 8 * stage);
        if (walk.on()) walk.next_item(a, g.k_blocks);
        if (++stage == g.stages) stage = 0, parity ^= 1;
      }
    }
    return;
  }

  registers_up<240>();
  const ScaledCast<B, BF, Integer, Zeros> cast(g, a, load_shared4(full + 896 + 4 * lane));
  const uint32_t staging = ring + g.stages * stage_bytes + warp * kScaledStaging;
  ScaledWalk walk(a, g.k_blocks);
  const int units = a.width * T;  // of an item: 32 rows of eight tokens, 1024 bytes of sums
  // A warpgroup multiplies together, whether all of its rows exist or not.
  const int own = min(warp, a.width - 1);
  const uint32_t unknown = load_shared4(full + 896 + 4 * lane), words = (ring + weights_at + own * 512 * B + lane * 16) ^ unknown;
  const uint32_t scales = (ring + scales_at + own * per_block * 64 + (lane >> 2) * 8) ^ unknown;
  const uint32_t zeros = ring + zeros_at + own * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind;
  float sum[2][T][4];
  uint32_t pairs[4][2][4], q[4 * B], scale_words[2][2], zero_words[2][2], scale[4], rest[4], high[4], low[4];

  // The words of chunk c that no chunk before it needed, and its scales and zero points; `at`: the stage's bytes from the ring's begin.
  const int chunks = 4 / per_block;  // of a group
  const auto fetch = [&](uint32_t at, int c) {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (v >= (c * B + 3) / 4 && v < ((c + 1) * B + 3) / 4) {
        const uint4 word = load_shared16(words + at + v * 512);
        q[4 * v] = word.x, q[4 * v + 1] = word.y, q[4 * v + 2] = word.z, q[4 * v + 3] = word.w;
      }
    if (c & (chunks - 1)) return;
    const int group = c * per_block >> 2;
    load_shared8(scale_words[c & 1][0], scale_words[c & 1][1], scales + at + group * 64);
    if constexpr (Zeros) {
      if (g.zero_kind == 1) zero_words[c & 1][0] = load_shared4(zeros + at + group * 32);
      else if (g.zero_kind == 2) load_shared8(zero_words[c & 1][0], zero_words[c & 1][1], zeros + at + group * 64);
    }
  };
  // What chunk c is multiplied by, and what is taken from it first.
  const auto factors = [&](int c) {
    if (c & (chunks - 1)) return;
    const uint32_t(&halves)[2] = scale_words[c & 1];
    if (BF || g.scale_bf16) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const uint16_t bits = static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1));
        if constexpr (BF) {
          // A scale in f16 is the sum of two in bf16.
          const float s = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
          const uint16_t most = from_float<true>(s);
          scale[r] = twice(most), rest[r] = twice(from_float<true>(s - to_float(most, true)));
        } else {
          scale[r] = twice(from_float<false>(to_float(bits, true)));
        }
      }
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) scale[r] = r & 1 ? upper_twice(halves[r >> 1]) : lower_twice(halves[r >> 1]);
    }
    if constexpr (Zeros) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float zero = a.zero;
        if (g.zero_kind == 1) zero = static_cast<float>((zero_words[c & 1][0] >> 8 * r) & 255);
        else if (g.zero_kind == 2) zero = to_float(static_cast<uint16_t>(zero_words[c & 1][r >> 1] >> 16 * (r & 1)), false);
        const uint16_t most = from_float<BF>(-zero);
        high[r] = twice(most);
        if constexpr (BF) low[r] = twice(from_float<true>(-zero - to_float(most, true)));
      }
    }
  };
  // The pairs of 16 of K, the j-th of a packed block, into set j & 3.
  const auto make_pairs = [&](int j) {
    const int c = j >> 1, ks = j & 1;
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 2 * p + (i & 1);
        const uint32_t v = cast.value(q + c * B, 4 * (2 * ks + (i >> 1)) + r, high, low);
        if constexpr (BF) pairs[j & 3][p][i] = fma_pairs<true>(v, scale[r], multiply_pairs<true>(v, rest[r]));
        else pairs[j & 3][p][i] = multiply_pairs<false>(v, scale[r]);
      }
  };

  int stage = 0, parity = 0;
  bool begins = true;
  if (walk.steps > 0) {
    barrier_wait(full, 0);
    fetch(0, 0);
    factors(0);
    make_pairs(0), make_pairs(1);
    fetch(0, 1);
  }
  const int first_item = walk.item;
  int began = walk.kb;
  for (int step = 0; step < walk.steps; ++step) {
    const uint32_t at = stage * stage_bytes;
    const uint64_t x0 = rows_descriptor(ring + at);
    const auto x = [x0](uint32_t further) { return (x0 & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(x0) + further); };
    const int before = stage == 0 ? g.stages - 1 : stage - 1, next = stage + 1 == g.stages ? 0 : stage + 1;
    const bool more = step + 1 < walk.steps;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      group_fence();
#pragma unroll
      for (int p = 0; p < 2; ++p) group_multiply<BF, T>(sum[p], pairs[j & 3][p], x((j >> 2) * (kSlab >> 4) + (j & 3) * 2), j > 0 || !begins);
      group_commit();
      group_wait<2>();  // the registers of the products before the one before are free, and at j = 1 the stage before, too
      if (j == 1 && step > 0) {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * before);
      }
      // Words a chunk ahead of the pairs, pairs a chunk ahead of the products.
      // After the last step what is fetched and made is never used.
      if (j == 5 && more) barrier_wait(full + 8 * next, next == 0 ? parity ^ 1 : parity);
      if (j & 1 && !(B == 1 && j == 5)) fetch(j < 5 ? at : next * stage_bytes, (j + 3) / 2 % 4);
      if (!(j & 1)) factors((j + 2) / 2 % 4);
      make_pairs((j + 2) % 8);
      if (B == 1 && j == 5) fetch(next * stage_bytes, 0);  // one vector holds all chunks
    }
    begins = false;
    if (++stage == g.stages) stage = 0, parity ^= 1;
    if (!walk.on()) continue;

    group_wait<0>();
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) written_by_products(sum[p][t][i]);
    int block0, token0;
    scaled_place(a, 8 * T, walk.item, block0, token0);
    const long long total = static_cast<long long>(a.shared_items) * g.k_blocks;
    const bool whole = walk.kb - began == g.k_blocks, mine = warp < a.width && block0 + warp < g.n_blocks;
    if (!whole && !(a.owners && began == 0)) {
      // A block keeps the sums of the item that it begins with in its first place.
      const long long place = static_cast<long long>(blockIdx.x) * 2 + (walk.item == first_item ? 0 : 1);
      float4* const to = reinterpret_cast<float4*>(g.partial) + place * units * 64 + lane;
      if (mine) {
#pragma unroll
        for (int t = 0; t < T; ++t)
          if (token0 + 8 * t < g.m) {
#pragma unroll
            for (int nt = 0; nt < 2; ++nt) __stcg(to + (warp * T + t) * 64 + nt * 32, make_float4(sum[nt][t][0], sum[nt][t][1], sum[nt][t][2], sum[nt][t][3]));
          }
      }
      __threadfence();
      barrier_among(1, 32 * warps);
      if (threadIdx.x == 0) atomicAdd(g.counters + 2 * walk.item, 1u);
    } else {
      if (!whole) {
        // The blocks that follow began with the rest of this item.
        unsigned* const counter = g.counters + 2 * walk.item;
        const int own = static_cast<int>(blockIdx.x);
        const int to = static_cast<int>(((static_cast<long long>(walk.item) + 1) * g.k_blocks * a.shared_blocks - 1) / total);
        if (threadIdx.x == 0)
          while (load_acquired(counter) < static_cast<unsigned>(to - own)) {
          }
        barrier_among(1, 32 * warps);
        if (threadIdx.x == 0) *counter = 0;  // for the next launch
        for (int c = own + 1; mine && c <= to; ++c) {
          const float4* const part = reinterpret_cast<const float4*>(g.partial) + (static_cast<long long>(c) * 2 * units + warp * T) * 64 + lane;
#pragma unroll
          for (int t = 0; t < T; ++t)
            if (token0 + 8 * t < g.m) {
#pragma unroll
              for (int nt = 0; nt < 2; ++nt) {
                const float4 v = __ldcg(part + t * 64 + nt * 32);
                sum[nt][t][0] += v.x, sum[nt][t][1] += v.y, sum[nt][t][2] += v.z, sum[nt][t][3] += v.w;
              }
            }
        }
      }
      if (mine) {
        constexpr int U = kScaledStaging / 512;
#pragma unroll
        for (int t = 0; t < T; t += U)
          if (token0 + 8 * t < g.m)
            store_tokens<BF, U>(g, a.vectors, block0 + warp, token0 + 8 * t, staging, lane, [&](int u, int nt, int i) { return sum[nt][t + u][i]; });
      }
    }
    walk.next_item(a, g.k_blocks);
    began = walk.kb, begins = true;
  }

  group_wait<0>();  // none is under way; the compiler does not see it
  // The items that this block shares with others. All blocks of the grid run at once, so nobody waits for ever.
  const long long total = static_cast<long long>(a.shared_items) * g.k_blocks;
  const int front = walk.first / g.k_blocks, back = a.owners || walk.first == walk.last ? front - 1 : (walk.last - 1) / g.k_blocks;
  for (int item = front; item <= back; ++item) {
    const long long begin = static_cast<long long>(item) * g.k_blocks, end = begin + g.k_blocks;
    const int from = static_cast<int>(((begin + 1) * a.shared_blocks - 1) / total), to = static_cast<int>((end * a.shared_blocks - 1) / total);
    if (from == to) continue;
    const int sharers = to - from + 1, turn = static_cast<int>(blockIdx.x) - from;
    unsigned* const counters = g.counters + 2 * item;
    if (threadIdx.x == 0)
      while (load_acquired(counters) < static_cast<unsigned>(sharers)) {
      }
    barrier_among(1, 32 * warps);
    int block0, token0;
    scaled_place(a, 8 * T, item, block0, token0);
    // Two units at once, of the same packed block.
    constexpr int U = 2;
    const int unit_end = units / U * (turn + 1) / sharers;
    for (int at = units / U * turn / sharers + warp; at < unit_end; at += warps) {
      const int unit = at * U, token = token0 + 8 * (unit % T);
      if (token >= g.m || block0 + unit / T >= g.n_blocks) continue;
      float v[U][2][4];
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int i = 0; i < 8; ++i) v[u][i >> 2][i & 3] = 0;
#pragma unroll 4
      for (int c = from; c <= to; ++c) {
        // Only `from` may have begun in an earlier item.
        const int place = c == from && c * total / a.shared_blocks < begin ? 1 : 0;
        const float4* const part = reinterpret_cast<const float4*>(g.partial) + ((static_cast<long long>(c) * 2 + place) * units + unit) * 64 + lane;
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int nt = 0; nt < 2; ++nt) {
            if (u > 0 && token + 8 * u >= g.m) continue;
            const float4 one = __ldcg(part + u * 64 + nt * 32);
            v[u][nt][0] += one.x, v[u][nt][1] += one.y, v[u][nt][2] += one.z, v[u][nt][3] += one.w;
          }
      }
      store_tokens<BF, U>(g, a.vectors, block0 + unit / T, token, staging, lane, [&](int u, int nt, int i) { return v[u][nt][i]; });
    }
    barrier_among(1, 32 * warps);
    // The last to be done leaves both counters at 0 for the next launch.
    if (threadIdx.x == 0 && atomicAdd(counters + 1, 1u) + 1 == static_cast<unsigned>(sharers)) counters[0] = counters[1] = 0;
  }
}

#endif

}  // namespace lpq::cuda

// c: constant whole zero points, and floats; z: all else.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LPQ_GEMM_SCALED(name, letter, bits, zeros, bf, integer)                                                            \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kScaledThreads, 1) lpq_gemm_##name##_##letter##16(               \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::ScaledArgs a,                \
      const __grid_constant__ lpq::cuda::PackedMaps maps) {                                                                \
    lpq::cuda::gemm_scaled<bits, 16, zeros, bf, integer>(g, a, maps);                                                      \
  }
#else
#define LPQ_GEMM_SCALED(name, letter, bits, zeros, bf, integer)
#endif
