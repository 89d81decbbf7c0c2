// gemm_packed for many tokens on devices without wgmma (sm_80 and its like): mma.m16n8k16 from the packed format
// (docs/internals/kernels/large.md).
//
// A block's tile is 256 columns by 8 T tokens. Each of eight warps owns 32 columns and all tokens, so every weight is
// dequantized by one
// warp alone: beside the products it is the number of instructions that this kernel's time depends on
// (docs/internals/kernels/large.md).
//
//   (lane, reg) -> (n, k) of a warp's operand A, 16 columns by 16 k: reg i holds n = lane / 4 + 8 (i % 2), k = 2 (lane
//   % 4) + 8 (i / 2) and the next k
//   (lane, reg) -> (k, m) of operand B, 16 k by 8 tokens:            reg i holds k = 2 (lane % 4) + 8 i and the next, m
//   = lane / 4 (lane, reg) -> (n, m) of the sums:                               reg i holds n = lane / 4 + 8 (i / 2), m
//   = 2 (lane % 4) + i % 2
//
// Everything comes through a ring in shared memory (cp.async) of stages of 64 k: activations, and half of each packed
// block's words. Fragments are a product of 16 k ahead: activations are fetched again (ldmatrix) as soon as both
// fragments of weights have met them, and the next weights are cast meanwhile. A stage's barrier stands in its last
// product.
//
// The arithmetic is MARLIN's (its section 3.4): weights are dequantized in registers with the scale in the cast, w =
// T((q - z) s) rounded once to the type T of the activations, and the tensor core adds up all of K. q - z is exact
// where z is a whole number that T takes off exactly (f16: to 1024; bf16: to 128, of 8 bits 256); other zero points are
// TurboMind's, w = T(q s + T(-z s)). With bf16 activations f16 scales are rounded to bf16 first. So |w - W| <= u |W| (2
// u with rounded scales) + u |z s| where z is not whole, u = 2^-11 or 2^-8, and 2^-25 where f16 is subnormal; a weight
// beyond 65504 is infinite in f16.
//
// Tiles are whole where they fill the multiprocessors evenly; else each block owns an equal run of steps, and whoever
// is last with a tile that several blocks share adds up all parts in fp32 in the order of K.
#pragma once
#include "cuda/gemm/accumulators.cuh"
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/large.h"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/gemm/stream_k.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

template <int N>
struct Place {
  static constexpr int value = N;
};
// what(Place<I>()) for I from From to To - 1.
template <int From, int To, class What>
__device__ __forceinline__ void each(const What& what) {
  if constexpr (From < To) {
    what(Place<From>());
    each<From + 1, To>(what);
  }
}

template <bool BF>
__device__ __forceinline__ uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  return BF ? fma_x2<true>(a, b, c) : fma_x2<false>(a, b, c);
}

// What turns pairs of row class r into weights: fma(fma(pair, gain, offset), scale, shift). Every thread makes those of
// one row of the strip for each 64 k ahead and leaves them in shared memory: offsets, scales and shifts of 256 rows,
// packed as scales are, of one group or two.
constexpr int kFactorRows = 512;                  // bytes of one of the three
constexpr int kFactorSlot = 2 * 3 * kFactorRows;  // of 64 k
static_assert(2 * kFactorSlot == kLargeFactors);

// Of row class r, zero point z, scale `scaled` (rounded to the type of x). False: z does not come off exactly, and the
// shift depends on the scale.
template <class Cast, bool BF>
__device__ __forceinline__ bool take_off(int r, float z, float scaled, uint32_t& offset, uint32_t& shift) {
  const float none = -Cast::bias() * (r & 2 ? (r & 1 ? Cast::ungain(3) : Cast::ungain(2))
                                            : (r & 1 ? Cast::ungain(1) : Cast::ungain(0))),
              whole = none - z;
  const bool exact =
      z == truncf(z) && fabsf(z) <= (BF ? 256.0f : 1024.0f) && to_float(from_float(whole, BF), BF) == whole;
  offset = from_float(exact ? whole : none, BF);
  shift = exact ? 0x8000u : from_float(-z * scaled, BF);
  return exact;
}

// Of a packed block and this lane's four rows, a pair of row classes in a word. The instructions take either half for
// both of theirs.
template <class Cast, bool BF>
struct RowFactors {
  uint2 offset, scale, shift;

  __device__ __forceinline__ void read(uint32_t from) {
    scale = ld_shared_v2(from);
    if constexpr (Cast::kSums) offset = ld_shared_v2(from + kFactorRows), shift = ld_shared_v2(from + 2 * kFactorRows);
  }
  template <int r>
  __device__ __forceinline__ uint32_t weights(uint32_t unpower, uint32_t pair) const {
    const uint32_t s = r < 2 ? scale.x : scale.y;
    if constexpr (Cast::kSums) {
      const uint32_t d = fma_x2_halves<BF, -1, r % 2>(
          pair, both(BF ? 0x3f80u - (Cast::shift(r) << 7) : 0x3c00u - (Cast::shift(r) << 10)),
          r < 2 ? offset.x : offset.y);
      return fma_x2_halves<BF, r % 2, r % 2>(d, s, r < 2 ? shift.x : shift.y);
    } else {
      const uint32_t d = BF ? pair : fma_pair<BF>(pair, unpower, 0x80008000u);
      return fma_x2_halves<BF, r % 2, -1>(d, s, 0x80008000u);
    }
  }
};

// The token tile and strip of tile `tile`: bands of token tiles, which run along N.
__device__ __forceinline__ void place_tile(const GemmPackedArgs& g, const LargeArgs& a, int tile, int& strip,
                                           int& tokens) {
  const int band = tile / (a.band * g.strips), within = tile - band * a.band * g.strips,
            high = min(a.band, a.token_tiles - band * a.band);
  strip = within / high;
  tokens = band * a.band + within - strip * high;
}

// Sums of a warp, [16s of columns][eights of tokens], to y: 32 columns by 8 tokens at a time through `shelf`, the
// warp's own. A token's 64 bytes stand in four 16s, whose place the token turns, so that neither side meets in a bank.
template <int R, int W, bool BF>
__device__ __forceinline__ void store_tile(const GemmPackedArgs& g, bool vectors, const float (&sum)[R][W][4], int n0,
                                           int m0, uint32_t shelf, int lane) {
#pragma unroll
  for (int half = 0; half < R / 2; ++half) {
    if (n0 + 32 * half >= g.n) return;
    float bias[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = n0 + 32 * half + 8 * r + (lane >> 2);
      bias[r] = g.bias && n < g.n ? to_float(g.bias[n], BF) : 0.0f;
    }
#pragma unroll
    for (int t = 0; t < W; ++t) {
      __syncwarp();
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * nt + (i >> 1);
          st_shared_u16(shelf + (2 * (lane & 3) + (i & 1)) * 64 + ((r ^ (lane & 3)) << 4) + (lane >> 2) * 2,
                        from_float(sum[2 * half + nt][t][i] + bias[r], BF));
        }
      __syncwarp();
      const int row = lane >> 2, m = m0 + 8 * t + row, n = n0 + 32 * half + 8 * (lane & 3);
      const uint4 out = ld_shared_v4(shelf + row * 64 + (((lane & 3) ^ (row >> 1)) << 4));
      if (m >= g.m || n >= g.n) continue;
      uint16_t* to = g.y + static_cast<long long>(m) * g.n + n;
      if (vectors && n + 8 <= g.n) {
        *reinterpret_cast<uint4*>(to) = out;
      } else {
        const uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (n + e < g.n) to[e] = static_cast<uint16_t>(words[e / 2] >> 16 * (e & 1));
      }
    }
  }
}

// A tile that several blocks share: true for the last of them, which then has all of its sums. part_of(block): where a
// block's part is.
template <int R, int W, class Parts>
__device__ __forceinline__ bool gather_tile(float (&sum)[R][W][4], unsigned* counter, unsigned* flag,
                                            const TileSharers& sharers, const Parts& part_of) {
  float4* to = part_of(static_cast<int>(blockIdx.x));
#pragma unroll
  for (int v = 0; v < R * W; ++v) __stcg(to + v * 32, sum_vector(sum, v));
  if (!is_last_sharer(counter, flag, sharers, threadIdx.x == 0, [] { __syncthreads(); })) return false;
  clear_sums(sum);
  for (int block = sharers.from; block <= sharers.to; ++block) {
    const float4* from = part_of(block);
#pragma unroll
    for (int v = 0; v < R * W; ++v) add_vector(sum, v, __ldcg(from + v * 32));
  }
  return true;
}

// Weights of the packed format for multiply_tiles: a warp has a packed block's columns, 32. A stage holds the vectors
// of words that begin in its half, after the activations; of an odd number of bits the one in the middle stays in
// registers.
template <int B, int T, bool BF, class Cast>
struct PackedSource {
  template <int H>
  static constexpr int kHalf = H == 0 ? (B + 1) / 2 : B / 2;  // vectors of a half of a packed block
  static constexpr int kStages = kLargeStages, kStage = 1024 * T + kLargeWarps * 512 * kHalf<0>;
  // Products of 16 k that the loop spells out: those of 64 k where both halves are alike, else all 128.
  static constexpr int kProducts = B % 2 == 0 ? 4 : 8;
  const GemmPackedArgs& g;
  const Cast cast;
  RowFactors<Cast, BF> factors;
  uint32_t q[kProducts / 2 * B];    // words of those, as far as they are in use
  uint32_t factors_to, factors_at;  // slots of factors: of this lane's row to write, of its four rows to read
  int to_next = kFactorSlot, at_next = kFactorSlot;  // from a slot to the other
  const int lane, warp;
  uint32_t unpower = 0;  // of floats in f16: what the biases differ by
  bool varies = false;   // zero points are those of groups, or the constant one does not come off exactly
  // Of this warp's packed block: the words of the next half, scales and zero points of this lane's row of the next
  // group, and how many groups there are from it on.
  const unsigned char *codes_from, *zeros_from;
  const uint16_t* scales_from;
  int codes_bytes, groups_left;
  uint32_t raw_scale[2], raw_zero[2];  // of the groups of the 64 k after those at hand

  __device__ __forceinline__ PackedSource(const GemmPackedArgs& args, uint32_t slots, int lane_, int warp_)
      : g(args),
        cast(args.is_signed != 0, args.exponent),
        factors_to(slots + warp_ * 64 + lane_ * 2),
        factors_at(slots + warp_ * 64 + (lane_ >> 2) * 8),
        lane(lane_),
        warp(warp_) {
    if constexpr (Cast::kSums) {
      uint32_t offset, shift;
      varies = !take_off<Cast, BF>(lane & 3, g.zero, 0, offset, shift) || g.zero_kind != 0;
      // Where they are constant, those of both slots and groups.
#pragma unroll
      for (int slot = 0; slot < 4; ++slot) {
        st_shared_u16(factors_to + slot * (3 * kFactorRows) + kFactorRows, static_cast<uint16_t>(offset));
        st_shared_u16(factors_to + slot * (3 * kFactorRows) + 2 * kFactorRows, static_cast<uint16_t>(shift));
      }
    } else {
      unpower = both(from_float(cast.unpower, BF));
    }
  }
  // From here on the stages of a strip, from `step` on, are fetched.
  __device__ __forceinline__ void aim(int strip, int step) {
    const int nb = strip * kLargeWarps + warp, block = min(nb, g.n_blocks - 1),
              group = g.channel ? 0 : step * g.groups_per_block;
    const long long row = (static_cast<long long>(block) * g.groups + group) * 32 + lane;
    codes_from = g.weights + (static_cast<long long>(block) * g.k_blocks + step) * (512 * B) + lane * 16;
    codes_bytes = nb < g.n_blocks ? 16 : 0;
    scales_from = g.scales + row;
    zeros_from = g.zeros + row * g.zero_kind;
    groups_left = nb < g.n_blocks ? g.groups - group : 0;
  }
  // Starts copy I of half H of the packed block.
  template <int H, int I>
  __device__ __forceinline__ void copy(bool any, uint32_t stage) {
    cp_async_16(stage + 1024 * T + (warp * kHalf<0> + I) * 512 + lane * 16, codes_from + I * 512,
                any ? codes_bytes : 0);
  }
  // A half begins a group, or goes on with one of 128 k or of all K.
  __device__ __forceinline__ bool begins(int half) const { return half == 0 || g.groups_per_block != 1; }
  // After the copies of half H: its scales and zero points set out for the registers.
  template <int H>
  __device__ __forceinline__ void copied(bool any, int half) {
    codes_from += 512 * kHalf<H>;
    if (!begins(half)) return;
    const int halves = any ? groups_left : 0;
    raw_scale[0] = 0;
    ld_global_nc_u16_if(raw_scale[0], scales_from, halves > 0);
    if (g.groups_per_block == 4) {
      raw_scale[1] = 0;
      ld_global_nc_u16_if(raw_scale[1], scales_from + 32, halves > 1);
    }
    if (Cast::kSums && varies) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        raw_zero[j] = 0;
        ld_global_nc_u8_if(raw_zero[j], zeros_from + j * 32, halves > j && g.zero_kind == 1);
        ld_global_nc_u16_if(raw_zero[j], zeros_from + j * 64, halves > j && g.zero_kind == 2);
      }
    }
    if (!g.channel) {
      const int next = g.groups_per_block == 4 ? 2 : 1;
      scales_from += next * 32, zeros_from += next * 32 * g.zero_kind, groups_left -= next;
    }
  }
  // This lane's row of what was set out for the next half, to shared memory.
  __device__ __forceinline__ void prepare(int next_half) {
    if (!begins(next_half)) return;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (j == 1 && g.groups_per_block != 4) break;
      const uint16_t scaled = (g.scale_bf16 != 0) == BF ? static_cast<uint16_t>(raw_scale[j])
                                                        : from_float(to_float(raw_scale[j], g.scale_bf16 != 0), BF);
      const uint32_t place = factors_to + j * (3 * kFactorRows);
      st_shared_u16(place, scaled);
      if constexpr (Cast::kSums) {
        if (!varies) continue;
        uint32_t offset, shift;
        take_off<Cast, BF>(lane & 3,
                           g.zero + (g.zero_kind == 2   ? to_float(raw_zero[j], false)
                                     : g.zero_kind == 1 ? static_cast<float>(raw_zero[j])
                                                        : 0.0f),
                           to_float(scaled, BF), offset, shift);
        st_shared_u16(place + kFactorRows, static_cast<uint16_t>(offset));
        st_shared_u16(place + 2 * kFactorRows, static_cast<uint16_t>(shift));
      }
    }
    factors_to += to_next, to_next = -to_next;
  }
  // What 16 k need for make, the N-th of kProducts, in the stage at hand and half `half` of a packed block.
  template <int N>
  __device__ __forceinline__ void fetch(uint32_t stage, int half) {
    if constexpr (N % 2 == 0) {
      constexpr int C = N / 2;
#pragma unroll
      for (int v = 0; v < kProducts * B / 8; ++v)
        if (4 * v >= C * B && 4 * v < (C + 1) * B) {
          const uint4 four =
              ld_shared_v4(stage + 1024 * T +
                           (warp * kHalf<0> + (v >= kHalf<0> && kProducts == 8 ? v - kHalf<0> : v)) * 512 + lane * 16);
          q[4 * v] = four.x, q[4 * v + 1] = four.y, q[4 * v + 2] = four.z, q[4 * v + 3] = four.w;
        }
      if (C % 2 == 0 ? begins(half) : g.groups_per_block == 4) {
        if (C % 2 == 0) {
          factors.read(factors_at);
          factors_at += at_next, at_next = -at_next;
        } else {
          factors.read(factors_at + at_next + 3 * kFactorRows);
        }
      }
    }
  }
  // The registers of 16 columns P for those 16 k.
  template <int N, int P>
  __device__ __forceinline__ void make(uint32_t (&w)[4]) {
    const uint32_t* words = q + N / 2 * B;
    each<0, 4>([&](auto reg) {
      constexpr int I = decltype(reg)::value;
      w[I] = factors.template weights<2 * P + I % 2>(unpower, cast.pair(words, PackedChunk::pair(N % 2, P, I)));
    });
  }
};

// A block's steps: `count` in a row from (tile, step); the next tile is `stride` away.
struct LargeWalk {
  int tile, step, count, stride;

  __device__ __forceinline__ LargeWalk(const LargeArgs& a, int tiles, int steps) {
    if (a.per > 0) {
      const int first = blockIdx.x * a.per;
      count = max(0, min(a.per, tiles * steps - first));
      tile = first / steps, step = first - tile * steps, stride = 1;
    } else {
      tile = blockIdx.x, step = 0, stride = gridDim.x;
      count = (tiles - tile + stride - 1) / stride * steps;
    }
  }
};

// The copies of this thread, stages of 64 k in order: activations, and what the source has. Those of half H of a step
// are spread over kSlots places between products.
template <int R, int T, class Source>
struct LargeProducer {
  static constexpr int kSlots = 2 * R;
  const GemmPackedArgs& g;
  const LargeArgs& a;
  Source& source;
  const int steps, tiles, stride;
  const uint32_t ring, ring_end;
  int tile, step, strip, tokens;
  uint32_t stage, x_to;
  long long x_jump;
  const uint16_t* x_from;
  int x_tokens, x_left;

  __device__ __forceinline__ LargeProducer(const GemmPackedArgs& g_, const LargeArgs& a_, Source& source_,
                                           const LargeWalk& walk, int steps_, int tiles_, uint32_t ring_,
                                           uint32_t ring_end_)
      : g(g_),
        a(a_),
        source(source_),
        steps(steps_),
        tiles(tiles_),
        stride(walk.stride),
        ring(ring_),
        ring_end(ring_end_),
        tile(walk.tile),
        step(walk.step),
        stage(ring_) {
    place_tile(g, a, tile, strip, tokens);
    x_to = row() * 128 + ((chunk() ^ (row() & 7)) << 4), x_jump = 32ll * g.k;
    aim();
  }
  // Copies of place N. Copies of nothing fill a stage with zeros that nobody reads.
  template <int H, int N>
  __device__ __forceinline__ void copy(bool any) const {
    constexpr int kCopies = T / 4 + Source::template kHalf<H>;
    const int most = any && x_left > 0 ? x_tokens : 0;
    each<kCopies * N / kSlots, kCopies*(N + 1) / kSlots>([&](auto which) {
      constexpr int I = decltype(which)::value;
      if constexpr (I < T / 4) cp_async_16(stage + x_to + I * 4096, x_from + I * x_jump, 32 * I < most ? 16 : 0);
      else source.template copy<H, I - T / 4>(any, stage);
    });
  }
  // After the last of them.
  template <int H>
  __device__ __forceinline__ void commit(bool any, int half) {
    cp_async_commit();
    source.template copied<H>(any, half);
    x_from += 64, x_left -= 64;
    stage += Source::kStage;
    if (stage == ring_end) stage = ring;
    if (half == 1 && ++step == steps) {
      step = 0, tile += stride;
      if (tile < tiles) {
        place_tile(g, a, tile, strip, tokens);
        aim();
      }
    }
  }

 private:
  __device__ __forceinline__ static int chunk() { return threadIdx.x & 7; }
  __device__ __forceinline__ static int row() { return threadIdx.x >> 3; }
  __device__ __forceinline__ void aim() {
    const int column = step * kBlockK + chunk() * 8, token = tokens * 8 * T + row();
    x_from = g.x + static_cast<long long>(token) * g.k + column;
    x_tokens = g.m - token, x_left = g.k - column;
    source.aim(strip, step);
  }
};

// All tiles of a block. Source: kHalf, kStages, kStage, kProducts, and aim, copy, copied, prepare, fetch, make as
// PackedSource has them; R 16s of columns by W eights of tokens are a warp's, whose first column of the strip is n0 and
// first token of the tile m0.
template <int R, int W, int T, bool BF, class Source>
__device__ __forceinline__ void multiply_tiles(const GemmPackedArgs& g, const LargeArgs& a, Source& source,
                                               unsigned char* shared, uint32_t shelf, unsigned* flag, int n0, int m0,
                                               int lane, int warp) {
  const uint32_t ring = shared_address(shared), ring_end = ring + Source::kStages * Source::kStage;
  const int steps = g.k_blocks, tiles = g.strips * a.token_tiles;

  LargeWalk walk(a, tiles, steps);
  if (walk.count <= 0) return;
  LargeProducer<R, T, Source> producer(g, a, source, walk, steps, tiles, ring, ring_end);
  constexpr int kSlots = 2 * R;
  // Stages that are ahead: an even number, so that the half which is copied is the half at hand.
  static_assert(Source::kStages % 2 == 1);
  each<0, Source::kStages - 1>([&](auto which) {
    constexpr int S = decltype(which)::value;
    each<0, kSlots>([&](auto place) { producer.template copy<S % 2, decltype(place)::value>(S < 2 * walk.count); });
    producer.template commit<S % 2>(S < 2 * walk.count, S % 2);
    if (S + 2 < Source::kStages) source.prepare(S % 2);
  });

  float sum[R][W][4];
  clear_sums(sum);

  // Activations of 16 k, in two halves of a warp's tokens: matrix i of ldmatrix is tokens 8 (i / 2) and 8 of K from 8
  // (i % 2).
  uint32_t x[2][W / 4][4], w[2][R][4];
  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t x_at = (m0 + row7 + 8 * (matrix >> 1)) * 128 + (((matrix & 1) ^ row7) << 4);
  uint32_t stage = ring;
  const auto activations = [&](int part, int ks) {
    const uint32_t from = ((stage + x_at) ^ (ks << 5)) + part * (W / 4) * 2048;
#pragma unroll
    for (int t = 0; t < W / 4; ++t) ldmatrix_x4(x[part][t], from + t * 2048);
  };

  cp_async_wait<Source::kStages - 2>();
  __syncthreads();
  activations(0, 0), activations(1, 0);
  source.template fetch<0>(stage, 0);
  each<0, R>([&](auto row) { source.template make<0, decltype(row)::value>(w[0][decltype(row)::value]); });

  int strip, tokens;
  int left = 2 * walk.count - Source::kStages + 1;  // stages of 64 k that are still to be copied
  // The Q-th product of 16 k, and the fragments of the next: activations as soon as their registers are free. After the
  // barrier in the last product of a stage, the stage before it is free.
  const auto product = [&](auto which, int half) {
    constexpr int Q = decltype(which)::value, kNext = (Q + 1) % Source::kProducts, H = Q / 4;
    const auto multiply_part = [&](auto row, int part) {
      constexpr int P = decltype(row)::value;
#pragma unroll
      for (int t = 0; t < W / 4; ++t) {
        const int at = part * (W / 2) + 2 * t;
        mma_m16n8k16<BF>(sum[P][at], w[Q % 2][P], x[part][t][0], x[part][t][1]);
        mma_m16n8k16<BF>(sum[P][at + 1], w[Q % 2][P], x[part][t][2], x[part][t][3]);
      }
    };
    each<0, R>([&](auto row) {
      multiply_part(row, 0);
      if constexpr (Q % 4 < 2) producer.template copy<H, Q % 4 * R + decltype(row)::value>(left > 0);
    });
    if constexpr (Q % 4 == 3) {
      cp_async_wait<Source::kStages - 2>();
      __syncthreads();
      stage += Source::kStage;
      if (stage == ring_end) stage = ring;
    }
    source.template fetch<kNext>(stage, Q % 4 == 3 ? half ^ 1 : half);
    activations(0, kNext % 4);
    each<0, R>([&](auto row) {
      multiply_part(row, 1);
      source.template make<kNext, decltype(row)::value>(w[kNext % 2][decltype(row)::value]);
    });
    activations(1, kNext % 4);
    if constexpr (Q % 4 == 1) {
      source.prepare(half ^ 1);
      producer.template commit<H>(left > 0, half);
      --left;
    }
  };
  while (walk.count > 0) {
    place_tile(g, a, walk.tile, strip, tokens);
    const int run = min(walk.count, steps - walk.step);
    for (int i = 0; i < 2 * run; i += Source::kProducts / 4) {
      const int half = i & 1;
      product(Place<0>(), half), product(Place<1>(), half), product(Place<2>(), half), product(Place<3>(), half);
      if constexpr (Source::kProducts == 8)
        product(Place<4>(), 1), product(Place<5>(), 1), product(Place<6>(), 1), product(Place<7>(), 1);
    }
    bool finishes = true;
    if (a.per > 0) {
      const FixedRuns runs{steps, a.per};
      const TileSharers sharers = runs.sharers(walk.tile);
      if (sharers.to > sharers.from)
        finishes = gather_tile(sum, g.counters + walk.tile, flag, sharers, [&](int block) {
          return reinterpret_cast<float4*>(g.partial) +
                 (static_cast<long long>(2 * block + runs.part(walk.tile, block)) * kLargeWarps + warp) * (R * W * 32) +
                 lane;
        });
    }
    if (finishes) store_tile<R, W, BF>(g, a.vectors != 0, sum, strip * 256 + n0, tokens * 8 * T + m0, shelf, lane);
    clear_sums(sum);
    walk.count -= run, walk.step = 0, walk.tile += walk.stride;
  }
}

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_large(const GemmPackedArgs& g, const LargeArgs& a) {
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  using Source = PackedSource<B, T, BF, Cast>;
  constexpr int kRing = Source::kStages * Source::kStage, kShelves = kRing + kLargeFactors;
  Source source(g, shared_address(shared) + kRing, lane, warp);
  unsigned* const flag = reinterpret_cast<unsigned*>(shared + kShelves + kLargeWarps * kLargeShelf);
  multiply_tiles<2, T, T, BF>(g, a, source, shared, shared_address(shared) + kShelves + warp * kLargeShelf, flag,
                              warp * kBlockN, 0, lane, warp);
}

template <int B, bool BF>
using WholeIntCast = IntCast<B, BF, true>;

}  // namespace lpq::cuda

#define LPQ_LARGE_T(name, tiles, bits, bf, cast)                                                             \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kLargeWarps, 1) lpq_large_##name##_t##tiles(  \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) { \
    lpq::cuda::gemm_large<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, a);                                 \
  }
// Hopper has kernels of its own and takes these for comparisons alone: the widest tiles of some types, or all with
// LPQ_LARGE_ALL.
#if LPQ_PORTABLE_RUNS || defined(LPQ_LARGE_ALL)
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast) \
  LPQ_LARGE_T(name, 4, bits, bf, cast)            \
  LPQ_LARGE_T(name, 8, bits, bf, cast)            \
  LPQ_LARGE_T(name, 16, bits, bf, cast)
#define LPQ_LARGE LPQ_LARGE_ELSEWHERE
#else
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast)
#define LPQ_LARGE(name, bits, bf, cast) LPQ_LARGE_T(name, 16, bits, bf, cast)
#endif
