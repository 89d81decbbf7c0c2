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
#include "cuda/gemm/packed_words.cuh"
#include "cuda/gemm/pipeline.cuh"
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

// A stage: activations [2][8 T tokens][128 bytes], weights [width][512 B], scales and zeros [width][groups][32].
template <int B, int T>
struct WideStage {
  static constexpr int kSlab = 8 * T * 128;  // activations of 64 k
  static constexpr int weights_at = 2 * kSlab;
  int scales_at, zeros_at, filled, bytes;

  __device__ __forceinline__ WideStage(const GemmPackedArgs& g, const WideArgs& a, int per_block) {
    const int scale_bytes = a.width * per_block * 64, zero_bytes = a.width * per_block * 32 * g.zero_kind;
    scales_at = weights_at + a.width * 512 * B, zeros_at = scales_at + ((scale_bytes + 127) & ~127);
    filled = scales_at + scale_bytes + zero_bytes, bytes = (zeros_at + zero_bytes + 1023) & ~1023;
  }
};

// The steps [first, last), by one thread. Weights may come before the operation before has ended.
template <int B, int T>
__device__ __forceinline__ void produce(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps,
                                        const WideStage<B, T>& place, int per_block, const TmaPipeline& pipeline,
                                        uint32_t ring, int first, int last) {
  const auto weights = [&](int item, int kb, int stage) {
    const uint32_t to = ring + stage * place.bytes;
    const int nb = item / a.token_tiles * a.width, group = g.channel ? 0 : kb * per_block;
    // Boxes are whole beyond the tensors too, with zeros.
    const uint32_t full = pipeline.producer_commit(stage, place.filled);
    if (a.token_tiles == 1) tma_load_3d_evict_first(to + place.weights_at, &maps.weights, 0, kb * B, nb, full);
    else tma_load_3d(to + place.weights_at, &maps.weights, 0, kb * B, nb, full);
    tma_load_3d(to + place.scales_at, &maps.scales, 0, group, nb, full);
    if (g.zero_kind) tma_load_3d(to + place.zeros_at, &maps.zeros, 0, group, nb, full);
  };
  int item = first / g.k_blocks, kb = first % g.k_blocks, begun = 0;
  if (a.overlap) {
    begun = min(g.stages, last - first);
    for (int s = 0, i = item, k = kb; s < begun; ++s) {
      weights(i, k, s);
      if (++k == g.k_blocks) k = 0, ++i;
    }
    griddepcontrol_wait();
    fence_proxy_async();
    // Not sooner: what ran before the newest operation has ended when the next begins.
    griddepcontrol_launch_dependents();
  }
  PipelineState at;
  for (int step = first; step < last; ++step) {
    if (step - first >= begun) {
      pipeline.producer_acquire(at);
      weights(item, kb, at.stage);
    }
    tma_load_3d(ring + at.stage * place.bytes, &maps.x, 0, item % a.token_tiles * 8 * T, 2 * kb,
                pipeline.full + 8 * at.stage);
    if (++kb == g.k_blocks) kb = 0, ++item;
    at.advance(g.stages);
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

// Products of packed blocks, P 16-row halves of one at once: those from `pass` on.
// One: one group a packed block (or one scale a row), and zero points that leave in the pairs; else anything.
template <int B, int T, bool One, bool BF, class Cast>
struct WideMultiplier {
  static constexpr int P = kWideHalves<T>;
  const GemmPackedArgs& g;
  const WideArgs& a;
  const int lane;
  const Cast& cast;
  const bool sums;       // zero points leave through the sums of activations
  uint32_t (&minus)[4];  // what is added to the pairs of row class r

  // The rows of `pass` of the block whose lane's words, scales and zero points lie there, times activations at
  // descriptor x0.
  __device__ __forceinline__ void multiply(float (&sum)[2][T][4], int pass, uint32_t words, uint32_t scales,
                                           uint32_t zeros, uint64_t x0, int item, int kb) {
    const int per_block = One ? 1 : g.groups_per_block;
    float part[P][T][4];
    if constexpr (One) {
      begin_group(pass, zeros);
      uint32_t q[4 * B];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        load_ahead<B>(q, words, c);
        multiply_chunk(part, pass, q + c * B, x0, c, c == 0);
      }
      end_group(sum, part, pass, scales, zeros, item, kb);
    } else {
      const int chunks = 4 / per_block;  // of a group
#pragma unroll 1
      for (int c = 0, group = 0; c < 4; ++c) {
        uint32_t q[B];
        load_chunk<B>(q, words, c);
        const bool begins = (c & (chunks - 1)) == 0;
        if (begins) begin_group(pass, zeros + group * 32);
        multiply_chunk(part, pass, q, x0, c, begins);
        wgmma_wait<0>();  // products do not reach around a loop
        if (((c + 1) & (chunks - 1)) == 0) {
          end_group(sum, part, pass, scales + group * 64, zeros + group * 32 * g.zero_kind, item,
                    kb * per_block + group);
          ++group;
        }
      }
    }
  }

 private:
  // What chunk c does once its words are there.
  __device__ __forceinline__ void multiply_chunk(float (&part)[P][T][4], int pass, const uint32_t* q, uint64_t x0,
                                                 int c, bool begins) const {
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
      uint32_t w[P][4];
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[p][i] = cast.pair(q, PackedChunk::pair(ks, pass + p, i));
          if constexpr (Cast::kSums) w[p][i] = add_x2<BF>(w[p][i], minus[2 * (pass + p) + (i & 1)]);
        }
      const uint64_t x = x0 + (c >> 1) * (WideStage<B, T>::kSlab >> 4) + (c & 1) * 4 + ks * 2;
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < P; ++p) wgmma_k16<BF, T>(part[p], w[p], x, ks != 0 || !begins);
      wgmma_commit();
      wgmma_wait<1>();  // the registers of the products before are free
    }
  }
  // Zero points of a group, before its first chunk.
  __device__ __forceinline__ void begin_group(int pass, uint32_t zeros) {
    if constexpr (Cast::kSums) {
      if (a.zero_mode == kZeroOfGroups) {
        const uint32_t bytes = ld_shared(zeros);
#pragma unroll
        for (int r = 2 * pass; r < 2 * pass + 2 * P; ++r)
          minus[r] = twice(
              from_float<BF>(-fmaf(g.zero + static_cast<float>((bytes >> 8 * r) & 255), Cast::gain(r), Cast::bias())));
      }
    }
  }
  // Of groups that a last block lacks, products and scales are 0. `group`: of K.
  __device__ __forceinline__ void end_group(float (&sum)[2][T][4], float (&part)[P][T][4], int pass, uint32_t scales,
                                            uint32_t zeros, int item, int group) const {
    uint32_t pairs[2];
    ld_shared_v2(pairs[0], pairs[1], scales);
    float scale[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t bits = static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1));
      scale[r] = g.scale_bf16 ? to_float(bits, true) : to_float(bits, false);
      if constexpr (Cast::kSums) scale[r] *= Cast::ungain(r);
      else scale[r] *= cast.unpower;
    }
    wgmma_wait<0>();
    keep_sums(part);
    if constexpr (Cast::kSums && !One) {
      if (sums) take_zeros_off(part, pass, zeros, item, group);
    }
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[pass + p][t][i] = fmaf(scale[2 * (pass + p) + (i >> 1)], part[p][t][i], sum[pass + p][t][i]);
  }
  // part -= zero' S.
  __device__ __forceinline__ void take_zeros_off(float (&part)[P][T][4], int pass, uint32_t zeros, int item,
                                                 int group) const {
    float zero[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] = g.zero;
    if (g.zero_kind == 1) {
      const uint32_t bytes = ld_shared(zeros);
#pragma unroll
      for (int r = 0; r < 4; ++r) zero[r] += static_cast<float>((bytes >> 8 * r) & 255);
    } else if (g.zero_kind == 2) {
      uint32_t halves[2];
      ld_shared_v2(halves[0], halves[1], zeros);
#pragma unroll
      for (int r = 0; r < 4; ++r) zero[r] += to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] *= -Cast::gain(r);
    const long long row = static_cast<long long>(group) * a.sums_pitch + item % a.token_tiles * 8 * T;
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
};

// Sums leave as units of 32 rows of eight tokens, 1024 bytes: whole items to y, of shared ones the block's part to the
// workspace.
template <int T, bool BF>
struct WideEpilogue {
  static constexpr int H = kWideBlocks<T>;
  const GemmPackedArgs& g;
  const WideArgs& a;
  const uint32_t staging;
  const int lane, warp, warps;

  __device__ __forceinline__ void store_item(const float (&sum)[H][2][T][4], int item) const {
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
  }
  // Of the item that `block`'s run begins with (part 0) or ends with.
  __device__ __forceinline__ float4* part_of(int block, int part, int unit) const {
    return reinterpret_cast<float4*>(g.partial) +
           ((static_cast<long long>(block) * 2 + part) * (a.width * T) + unit) * 64 + lane;
  }
  __device__ __forceinline__ void keep_part(const float (&sum)[H][2][T][4], int part) const {
    float4* const to = part_of(static_cast<int>(blockIdx.x), part, 0);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const int slot = warp + h * warps;
      if (slot < a.width) {
#pragma unroll
        for (int t = 0; t < T; ++t)
#pragma unroll
          for (int nt = 0; nt < 2; ++nt) __stcg(to + (slot * T + t) * 64 + nt * 32, sum_vector(sum[h], nt * T + t));
      }
    }
  }
  // This block's share of an item's units.
  __device__ __forceinline__ void add_up(const EvenRuns& runs, int item, const TileSharers& sharers) const {
    const int token0 = item % a.token_tiles * 8 * T, block0 = item / a.token_tiles * a.width;
    const int units = a.width * T, rank = static_cast<int>(blockIdx.x) - sharers.from;
    const int unit_end = units * (rank + 1) / sharers.count();
    for (int unit = units * rank / sharers.count() + warp; unit < unit_end; unit += warps) {
      float v[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 4
      for (int c = sharers.from; c <= sharers.to; ++c) {
        const float4* const part = part_of(c, runs.part(sharers, c), unit);
        const float4 low = __ldcg(part), high = __ldcg(part + 32);
        v[0][0] += low.x, v[0][1] += low.y, v[0][2] += low.z, v[0][3] += low.w;
        v[1][0] += high.x, v[1][1] += high.y, v[1][2] += high.z, v[1][3] += high.w;
      }
      if (block0 + unit / T < g.n_blocks)
        store_eight<BF>(g, a.vectors, block0 + unit / T, token0 + 8 * (unit % T), v, staging, lane);
    }
  }
};

template <int B, int T, bool One, bool BF, class Cast>
__device__ __forceinline__ void gemm_wide(const GemmPackedArgs& g, const WideArgs& a, const PackedMaps& maps) {
  constexpr int H = kWideBlocks<T>;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int warps = static_cast<int>(blockDim.x >> 5) - 4;  // that multiply
  const int per_block = One ? 1 : g.groups_per_block;       // groups
  const EvenRuns runs(a.items, g.k_blocks, gridDim.x);
  const int first = runs.first(blockIdx.x), last = runs.first(blockIdx.x + 1);
  const WideStage<B, T> place(g, a, per_block);
  const uint32_t barriers = shared_address(dynamic_shared()), ring = barriers + 1024;
  const TmaPipeline pipeline{barriers, barriers + 8 * kWideStages};

  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) pipeline.init(s, warps);
    fence_mbarrier_init();
    fence_proxy_async_shared();
  }
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<T <= 4 ? 32 : 40>();
    if (warp == warps && lane == 0) produce(g, a, maps, place, per_block, pipeline, ring, first, last);
    return;
  }

  setmaxnreg_inc<T <= 4 ? 112 : 232>();
  const Cast cast(g.is_signed != 0, g.exponent);
  const bool sums = !One && a.zero_mode == kZeroSums;
  uint32_t minus[4];  // what is added to the pairs of row class r
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      minus[r] = twice(from_float<BF>(-fmaf(sums ? 0.0f : g.zero, Cast::gain(r), Cast::bias())));
  }
  WideMultiplier<B, T, One, BF, Cast> multiplier{g, a, lane, cast, sums, minus};
  const WideEpilogue<T, BF> epilogue{g, a, ring + g.stages * place.bytes + warp * 512, lane, warp, warps};
  const auto sync = [warps] { bar_sync(1, 32 * warps); };
  float sum[H][2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int h = 0; h < H; ++h) clear_sums(sum[h]);
  };
  clear();
  int item = first / g.k_blocks, kb = first % g.k_blocks;
  PipelineState at;
  bool began_inside = kb != 0;
  for (int step = first; step < last; ++step) {
    const uint32_t stage = ring + at.stage * place.bytes;
    pipeline.consumer_wait(at);
    const uint64_t x0 = wgmma_descriptor(stage);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      // A warpgroup multiplies together, whether all of its rows exist or not.
      const int slot = warp + h * warps, own = min(slot, a.width - 1);
      if (h > 0 && (slot & ~3) >= a.width) continue;
      // Places are arguments of each pass: as variables of the loop around they cost 45 spills of int3 and 128 tokens.
#pragma unroll
      for (int pass = 0; pass < 2 / kWideHalves<T>; ++pass)
        multiplier.multiply(sum[h], pass, stage + place.weights_at + own * 512 * B + lane * 16,
                            stage + place.scales_at + own * per_block * 64 + (lane >> 2) * 8,
                            stage + place.zeros_at + own * per_block * 32 * g.zero_kind + (lane >> 2) * 4 * g.zero_kind,
                            x0, item, kb);
    }
    pipeline.consumer_release(at.stage, lane);
    at.advance(g.stages);

    const bool item_ends = ++kb == g.k_blocks;
    if (item_ends || step + 1 == last) {
      if (item_ends && !began_inside) {
        epilogue.store_item(sum, item);
      } else {
        epilogue.keep_part(sum, item == first / g.k_blocks ? 0 : 1);
        publish_part(g.counters + 2 * item, threadIdx.x == 0, sync);
      }
      clear();
      if (item_ends) kb = 0, ++item, began_inside = false;
    }
  }
  fixup_together(
      runs, first, last, threadIdx.x == 0, [&](int shared_item) { return g.counters + 2 * shared_item; }, sync,
      [&](int shared_item, const TileSharers& sharers) { epilogue.add_up(runs, shared_item, sharers); });
}

#endif

}  // namespace lpq::cuda
