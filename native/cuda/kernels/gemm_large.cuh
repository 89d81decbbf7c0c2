// gemm_packed for many tokens on devices without wgmma (sm_80 and its like): mma.m16n8k16 from the packed format (docs/kernels.md).
//
// A block's tile is 256 columns by 8 T tokens. With 128 tokens eight warps are four along N by two along M, 64 columns by 64 tokens each:
// what two warps dequantize twice costs fewer cycles than what they would read of the activations twice, since a tile of 32 columns by 128
// tokens takes three quarters of shared memory's bandwidth. With fewer tokens each warp owns 32 columns and all tokens.
//
//   (lane, reg) -> (n, k) of a warp's operand A, 16 columns by 16 k: reg i holds n = lane / 4 + 8 (i % 2), k = 2 (lane % 4) + 8 (i / 2) and the next k
//   (lane, reg) -> (k, m) of operand B, 16 k by 8 tokens:            reg i holds k = 2 (lane % 4) + 8 i and the next, m = lane / 4
//   (lane, reg) -> (n, m) of the sums:                               reg i holds n = lane / 4 + 8 (i / 2), m = 2 (lane % 4) + i % 2
//
// Everything comes through rings in shared memory (cp.async): activations and scales in stages of 64 k, words of packed blocks 128 k at a
// time, with the even stages. Fragments are a product ahead: while the tensor core multiplies 16 k, ldmatrix fetches the activations of the next 16, and
// as soon as a fragment of weights has been multiplied the next one is cast into its registers. A stage's barrier stands before its last 16 k
// are multiplied.
//
// The arithmetic is MARLIN's (its section 3.4): weights are dequantized in registers with the scale in the cast, w = T((q - z) s) rounded
// once to the type T of the activations, and the tensor core adds up all of K. q - z is exact where z is a whole number that T takes off
// exactly (f16: to 1024; bf16: to 128, of 8 bits 256); other zero points are TurboMind's, w = T(q s + T(-z s)). With bf16 activations f16
// scales are rounded to bf16 first. So |w - W| <= u |W| (2 u with rounded scales) + u |z s| where z is not whole, u = 2^-11 or 2^-8, and
// 2^-25 where f16 is subnormal; a weight beyond 65504 is infinite in f16.
//
// Tiles are whole where they fill the multiprocessors evenly; else each block owns an equal run of steps, and whoever is last with
// a tile that several blocks share adds up all parts in fp32 in the order of K.
#pragma once
#include "cuda/kernels/cast.cuh"
#include "cuda/kernels/fragment_ptx.cuh"
#include "cuda/kernels/gemm_large.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/stripe_instructions.cuh"

namespace lpq::cuda {

template <int N>
struct Place {
  static constexpr int value = N;
};

template <bool BF>
__device__ __forceinline__ uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  return BF ? fma_pair_bf16(a, b, c) : fma_pair_f16(a, b, c);
}

// What turns pairs of row class r into weights: fma(fma(pair, gain, offset), scale, shift), each for two classes in a word. The
// instructions take either half for both of theirs.
template <class Cast, bool BF>
struct RowFactors {
  uint32_t offset[2], scale[2], shift[2];

  // Offset and shift for zero point z; `scaled`: the rounded scale. False: z does not come off exactly, so that the shift depends on the scale.
  __device__ __forceinline__ static bool take_off(int r, float z, float scaled, uint32_t& offset, uint32_t& shift) {
    const float none = -Cast::bias() * Cast::ungain(r), whole = none - z;
    const bool exact = z == truncf(z) && fabsf(z) <= (BF ? 256.0f : 1024.0f) && half_to_float(float_to_half(whole, BF), BF) == whole;
    offset = float_to_half(exact ? whole : none, BF);
    shift = exact ? 0x8000u : float_to_half(-z * scaled, BF);
    return exact;
  }
  __device__ __forceinline__ bool take_off(const float (&z)[4]) {
    bool exact = true;
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      uint32_t o[2], t[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) exact = take_off(2 * two + r, z[2 * two + r], half_to_float(scale[two] >> 16 * r & 0xffffu, BF), o[r], t[r]) && exact;
      offset[two] = o[0] | o[1] << 16, shift[two] = t[0] | t[1] << 16;
    }
    return exact;
  }
  // What holds for all groups. Returns whether that is all but the scales.
  __device__ __forceinline__ bool begin(const GemmPackedArgs& g) {
    scale[0] = scale[1] = 0;
    if constexpr (Cast::kSums) {
      const float z[4] = {g.zero, g.zero, g.zero, g.zero};
      return take_off(z) && g.zero_kind == 0;
    }
    return true;
  }
  // Scales of a group, as packed, in shared memory.
  __device__ __forceinline__ void read(uint32_t scales, int lane) {
    const uint2 pairs = load_shared8(scales + (lane >> 2) * 8);
    scale[0] = pairs.x, scale[1] = pairs.y;
  }
  // After read: scales of the other type, and zero points of groups.
  __device__ __forceinline__ void convert(const GemmPackedArgs& g) {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      const bool from = g.scale_bf16 != 0;
      scale[two] = float_to_half(half_to_float(scale[two] & 0xffffu, from), BF) | static_cast<uint32_t>(float_to_half(half_to_float(scale[two] >> 16, from), BF)) << 16;
    }
  }
  __device__ __forceinline__ void read_zeros(const GemmPackedArgs& g, uint32_t zeros, int lane) {
    float z[4] = {g.zero, g.zero, g.zero, g.zero};
    if (g.zero_kind == 1) {
      const uint32_t bytes = load_shared4(zeros + (lane >> 2) * 4);
#pragma unroll
      for (int r = 0; r < 4; ++r) z[r] += static_cast<float>(bytes >> 8 * r & 255u);
    } else if (g.zero_kind == 2) {
      const uint2 words = load_shared8(zeros + (lane >> 2) * 8);
#pragma unroll
      for (int r = 0; r < 4; ++r) z[r] += half_to_float((r < 2 ? words.x : words.y) >> 16 * (r & 1) & 0xffffu, false);
    }
    take_off(z);
  }
  template <int I>
  __device__ __forceinline__ uint32_t weights(uint32_t unpower, uint32_t pair) const {
    constexpr int r = I;
    if constexpr (Cast::kSums) {
      const uint32_t d = fma_halves<BF, -1, r % 2>(pair, both(BF ? 0x3f80u - (Cast::shift(r) << 7) : 0x3c00u - (Cast::shift(r) << 10)), offset[r / 2]);
      return fma_halves<BF, r % 2, r % 2>(d, scale[r / 2], shift[r / 2]);
    } else {
      const uint32_t d = BF ? pair : fma_pair<BF>(pair, unpower, 0x80008000u);
      return fma_halves<BF, r % 2, -1>(d, scale[r / 2], 0x80008000u);
    }
  }
};

// The token tile and strip of tile `tile`: bands of token tiles, which run along N.
__device__ __forceinline__ void place_tile(const GemmPackedArgs& g, const LargeArgs& a, int tile, int& strip, int& tokens) {
  const int band = tile / (a.band * g.strips), within = tile - band * a.band * g.strips, high = min(a.band, a.token_tiles - band * a.band);
  strip = within / high;
  tokens = band * a.band + within - strip * high;
}

// Sums of a warp, [16s of columns][eights of tokens], to y: 32 columns by 8 tokens at a time through `shelf`, the warp's own. A token's 64
// bytes stand in four 16s, whose place the token turns, so that neither side meets in a bank.
template <int R, int W, bool BF>
__device__ __forceinline__ void store_tile(const GemmPackedArgs& g, bool vectors, const float (&sum)[R][W][4], int n0, int m0, uint32_t shelf, int lane) {
#pragma unroll
  for (int half = 0; half < R / 2; ++half) {
    if (n0 + 32 * half >= g.n) return;
    float bias[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = n0 + 32 * half + 8 * r + (lane >> 2);
      bias[r] = g.bias && n < g.n ? half_to_float(g.bias[n], BF) : 0.0f;
    }
#pragma unroll
    for (int t = 0; t < W; ++t) {
      __syncwarp();
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * nt + (i >> 1);
          store_shared2(shelf + (2 * (lane & 3) + (i & 1)) * 64 + ((r ^ (lane & 3)) << 4) + (lane >> 2) * 2, float_to_half(sum[2 * half + nt][t][i] + bias[r], BF));
        }
      __syncwarp();
      const int row = lane >> 2, m = m0 + 8 * t + row, n = n0 + 32 * half + 8 * (lane & 3);
      const uint4 out = load_shared16(shelf + row * 64 + (((lane & 3) ^ (row >> 1)) << 4));
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

// A tile that several blocks share: true for the last of them, which then has all of its sums. part_of(block): where a block's part is.
template <int R, int W, class Parts>
__device__ __forceinline__ bool gather_tile(const GemmPackedArgs& g, float (&sum)[R][W][4], unsigned* flag, int tile, int top, int bottom, const Parts& part_of) {
  float4* to = part_of(static_cast<int>(blockIdx.x));
#pragma unroll
  for (int v = 0; v < R * W; ++v) __stcg(to + v * 32, make_float4(sum[v / W][v % W][0], sum[v / W][v % W][1], sum[v / W][v % W][2], sum[v / W][v % W][3]));
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = count_up(g.counters + tile);
    *flag = before;
    if (before == static_cast<unsigned>(bottom - top)) g.counters[tile] = 0;
  }
  __syncthreads();
  if (*flag != static_cast<unsigned>(bottom - top)) return false;
#pragma unroll
  for (int v = 0; v < R * W; ++v) sum[v / W][v % W][0] = sum[v / W][v % W][1] = sum[v / W][v % W][2] = sum[v / W][v % W][3] = 0;
  for (int block = top; block <= bottom; ++block) {
    const float4* from = part_of(block);
#pragma unroll
    for (int v = 0; v < R * W; ++v) {
      const float4 part = __ldcg(from + v * 32);
      sum[v / W][v % W][0] += part.x, sum[v / W][v % W][1] += part.y, sum[v / W][v % W][2] += part.z, sum[v / W][v % W][3] += part.w;
    }
  }
  return true;
}

// Weights of the packed format for multiply_tiles. R: 16s of columns of a warp, whose first packed block of the eight of a strip is `first`.
template <int B, int R, int T, bool BF, class Cast>
struct PackedSource {
  static constexpr int kStages = kLargeStages, kStage = 1024 * T + kLargeWarps * kLargeSide;  // activations, then scales and zero points
  const GemmPackedArgs& g;
  const Cast cast;
  RowFactors<Cast, BF> factors[R / 2];
  // Products of 16 k that the loop spells out: those of 64 k where a half of a packed block is whole vectors of words, else all 128.
  static constexpr int kProducts = B % 2 == 0 ? 4 : 8;
  uint32_t q[R / 2][kProducts / 2 * B];  // words of those, as far as they are in use
  const uint32_t words;
  uint32_t to, at;  // slots of words: where this lane copies the next ones to, and where it finds those in use
  const int first, lane, warp;
  bool constant, later = false;  // later: the second half of a packed block is at hand
  uint32_t unpower = 0;  // of floats in f16: what the biases differ by
  // Of this warp's packed block: the words of the next step, scales and zero points; groups from the next stage on, and the next group.
  const unsigned char *codes_from, *scales_from, *zeros_from;
  int codes_bytes, group, groups_left;

  __device__ __forceinline__ PackedSource(const GemmPackedArgs& args, uint32_t slots, int first_block, int lane_, int warp_)
      : g(args), cast(args.is_signed != 0, args.exponent), words(slots), to(slots), at(slots), first(first_block), lane(lane_), warp(warp_) {
#pragma unroll
    for (int p = 0; p < R / 2; ++p) constant = factors[p].begin(g);
    if constexpr (!Cast::kSums) unpower = both(float_to_half(cast.unpower, BF));
  }
  // From here on the stages of a strip, from `step` on, are copied.
  __device__ __forceinline__ void aim(int strip, int step) {
    const int nb = strip * kLargeWarps + warp, block = min(nb, g.n_blocks - 1);
    const long long row = static_cast<long long>(block) * g.groups * 32;
    codes_from = g.weights + (static_cast<long long>(block) * g.k_blocks + step) * (512 * B) + lane * 16;
    codes_bytes = nb < g.n_blocks ? 16 : 0;
    scales_from = reinterpret_cast<const unsigned char*>(g.scales + row) + lane * 16;
    zeros_from = g.zeros + row * g.zero_kind + lane * 16;
    group = g.channel ? 0 : step * g.groups_per_block;
    groups_left = nb < g.n_blocks ? g.groups - group : 0;
  }
  // Starts copies of what is needed of 64 k besides activations: each warp's packed block.
  __device__ __forceinline__ void copy(uint32_t stage, int half) {
    const int halves = g.groups_per_block == 4 ? 2 : 1;
    const uint32_t side = stage + 1024 * T + warp * kLargeSide + lane * 16;
    if (lane < 4 * halves) copy16_async(side, scales_from + group * 64, lane < 4 * groups_left ? 16 : 0);
    if (g.zero_kind && lane < 2 * g.zero_kind * halves) copy16_async(side + 128, zeros_from + group * 32 * g.zero_kind, lane < 2 * g.zero_kind * groups_left ? 16 : 0);
    if (half == 0) {
      const uint32_t place = to + warp * (512 * B) + lane * 16;
#pragma unroll
      for (int v = 0; v < B; ++v) copy16_async(place + v * 512, codes_from + v * 512, codes_bytes);
      codes_from += 512 * B;
      to = to == words ? words + kLargeWords * B : words;
    }
    const int next = g.channel ? 0 : (g.groups_per_block + half) >> 1;
    group += next, groups_left -= next;
  }
  // What 16 k, the N-th of kProducts that are in the stage at hand, need for make.
  template <int N>
  __device__ __forceinline__ void fetch(uint32_t stage) {
    if constexpr (N % 2 == 0) fetch_chunk<N / 2>(stage);
  }
  template <int C>
  __device__ __forceinline__ void fetch_chunk(uint32_t stage) {
    constexpr int kWhole = kProducts == 8;  // chunks 0 to 3, not those of a half
#pragma unroll
    for (int p = 0; p < R / 2; ++p)
#pragma unroll
      for (int v = 0; v < kProducts * B / 8; ++v)
        if (4 * v >= C * B && 4 * v < (C + 1) * B) {
          const uint4 four = load_shared16(at + ((first + p) * B + v) * 512 + lane * 16);
          q[p][4 * v] = four.x, q[p][4 * v + 1] = four.y, q[p][4 * v + 2] = four.z, q[p][4 * v + 3] = four.w;
        }
    const bool begins = kWhole ? C == 0 : C == 0 && !later, middle = kWhole ? C == 2 : C == 0 && later;
    if (kWhole ? C == 3 : C == 1) {
      if (kWhole || later) at = at - (kWhole ? 0 : 256 * B) == words ? words + kLargeWords * B : words;
      else at += 256 * B;
      later = !kWhole && !later;
    }
    if (!begins && g.groups_per_block <= (middle ? 1 : 2)) return;
    const int second = C % 2;
    const uint32_t side = stage + 1024 * T + first * kLargeSide;
#pragma unroll
    for (int p = 0; p < R / 2; ++p) factors[p].read(side + p * kLargeSide + second * 64, lane);
    if ((g.scale_bf16 != 0) != BF) {
#pragma unroll
      for (int p = 0; p < R / 2; ++p) factors[p].convert(g);
    }
    if constexpr (Cast::kSums) {
      if (constant) return;
#pragma unroll
      for (int p = 0; p < R / 2; ++p) factors[p].read_zeros(g, side + p * kLargeSide + 128 + second * 32 * g.zero_kind, lane);
    }
  }
  // The registers of 16 columns P for those 16 k.
  template <int N, int P>
  __device__ __forceinline__ void make(uint32_t (&w)[4]) {
    constexpr int r = 2 * (P % 2), from = 8 * (N % 2) + r;
    const uint32_t* words_of = q[P / 2] + N / 2 * B;
    w[0] = factors[P / 2].template weights<r>(unpower, cast.pair(words_of, from));
    w[1] = factors[P / 2].template weights<r + 1>(unpower, cast.pair(words_of, from + 1));
    w[2] = factors[P / 2].template weights<r>(unpower, cast.pair(words_of, from + 4));
    w[3] = factors[P / 2].template weights<r + 1>(unpower, cast.pair(words_of, from + 5));
  }
};

template <int N, int P = 0, class Source, int R>
__device__ __forceinline__ void make_all(Source& source, uint32_t (&w)[R][4]) {
  source.template make<N, P>(w[P]);
  if constexpr (P + 1 < R) make_all<N, P + 1>(source, w);
}

// All tiles of a block. Source: kStages, kStage, kProducts and aim, copy, fetch, make as PackedSource has them; R 16s of columns by W eights of tokens are a warp's, whose
// first column of the strip is n0 and first token of the tile m0.
template <int R, int W, int T, bool BF, class Source>
__device__ __forceinline__ void multiply_tiles(const GemmPackedArgs& g, const LargeArgs& a, Source& source, unsigned char* shared, uint32_t shelf, unsigned* flag, int n0, int m0, int lane, int warp) {
  const uint32_t ring = shared_address(shared), ring_end = ring + Source::kStages * Source::kStage;
  const int steps = g.k_blocks, tiles = g.strips * a.token_tiles;

  // This block's steps: `count` in a row from (tile, step); the next tile is `stride` away.
  int tile, step, count, stride;
  if (a.per > 0) {
    const int first = blockIdx.x * a.per;
    count = max(0, min(a.per, tiles * steps - first));
    tile = first / steps, step = first - tile * steps, stride = 1;
  } else {
    tile = blockIdx.x, step = 0, stride = gridDim.x;
    count = (tiles - tile + stride - 1) / stride * steps;
  }
  if (count <= 0) return;

  // Stages of 64 k, in order.
  int load_tile = tile, load_step = step, load_half = 0, load_strip, load_tokens;
  place_tile(g, a, load_tile, load_strip, load_tokens);
  uint32_t load_stage = ring;
  const int chunk = threadIdx.x & 7, first_row = threadIdx.x >> 3;
  const uint32_t x_to = first_row * 128 + ((chunk ^ (first_row & 7)) << 4);
  const long long x_jump = 32ll * g.k;
  const uint16_t* x_from;
  int x_tokens, x_left;
  const auto aim = [&] {
    const int column = load_step * kBlockK + chunk * 8, token = load_tokens * 8 * T + first_row;
    x_from = g.x + static_cast<long long>(token) * g.k + column;
    x_tokens = g.m - token, x_left = g.k - column;
    source.aim(load_strip, load_step);
  };
  aim();
  const auto load = [&](bool any) {
    if (any) {
      const int tokens = x_left > 0 ? x_tokens : 0;
      const uint16_t* from = x_from;
#pragma unroll
      for (int i = 0; i < T / 4; ++i, from += x_jump) copy16_async(load_stage + x_to + i * 4096, from, 32 * i < tokens ? 16 : 0);
      source.copy(load_stage, load_half);
      x_from += 64, x_left -= 64;
      if ((load_half ^= 1) == 0 && ++load_step == steps) {
        load_step = 0, load_tile += stride;
        if (load_tile < tiles) {
          place_tile(g, a, load_tile, load_strip, load_tokens);
          aim();
        }
      }
      load_stage += Source::kStage;
      if (load_stage == ring_end) load_stage = ring;
    }
    commit_copies();
  };
  for (int s = 0; s < Source::kStages; ++s) load(s < 2 * count);

  float sum[R][W][4];
  const auto clear = [&] {
#pragma unroll
    for (int v = 0; v < R * W; ++v) sum[v / W][v % W][0] = sum[v / W][v % W][1] = sum[v / W][v % W][2] = sum[v / W][v % W][3] = 0;
  };
  clear();

  // Activations of 16 k: matrix i of ldmatrix is tokens 8 (i / 2) and 8 of K from 8 (i % 2).
  uint32_t x[2][W / 2][4], w[R][4];
  const int row7 = lane & 7, matrix = lane >> 3;
  const uint32_t x_at = (m0 + row7 + 8 * (matrix >> 1)) * 128 + (((matrix & 1) ^ row7) << 4);
  const auto activations = [&](uint32_t (&to)[W / 2][4], uint32_t stage, int ks) {
    const uint32_t from = (stage + x_at) ^ (ks << 5);
#pragma unroll
    for (int t = 0; t < W / 2; ++t) load_matrices(to[t], from + t * 2048);
  };

  uint32_t stage = ring;
  wait_copies<Source::kStages - 1>();
  __syncthreads();
  activations(x[0], stage, 0);
  source.template fetch<0>(stage);
  make_all<0>(source, w);

  int strip, tokens;
  // Stages of 64 k that are still to be copied, after the next.
  int left = 2 * count - Source::kStages + 1;
  // Products of 16 columns P and 16 k, the Q-th of kProducts; then the weights of the next 16 k.
  const auto rows = [&](auto which_row, auto which) {
    constexpr int P = decltype(which_row)::value, kNext = (decltype(which)::value + 1) % Source::kProducts, kNow = decltype(which)::value % 2;
#pragma unroll
    for (int t = 0; t < W / 2; ++t) {
      multiply<BF>(sum[P][2 * t], w[P], x[kNow][t][0], x[kNow][t][1]);
      multiply<BF>(sum[P][2 * t + 1], w[P], x[kNow][t][2], x[kNow][t][3]);
    }
    source.template make<kNext, P>(w[P]);
  };
  const auto product = [&](auto which) {
    constexpr int Q = decltype(which)::value, kNext = (Q + 1) % Source::kProducts;
    if constexpr (Q % 4 == 3) {
      wait_copies<Source::kStages - 2>();
      __syncthreads();
      stage += Source::kStage;
      if (stage == ring_end) stage = ring;
    }
    activations(x[kNext % 2], stage, kNext % 4);
    source.template fetch<kNext>(stage);
    if constexpr (Q % 4 == 3) load(--left > 0);
    rows(Place<0>(), which), rows(Place<1>(), which);
    if constexpr (R == 4) rows(Place<2>(), which), rows(Place<3>(), which);
  };
  while (count > 0) {
    place_tile(g, a, tile, strip, tokens);
    const int run = min(count, steps - step);
    for (int i = 0; i < run * (8 / Source::kProducts); ++i) {
      product(Place<0>()), product(Place<1>()), product(Place<2>()), product(Place<3>());
      if constexpr (Source::kProducts == 8) product(Place<4>()), product(Place<5>()), product(Place<6>()), product(Place<7>());
    }
    bool finishes = true;
    if (a.per > 0) {
      const int top = tile * steps / a.per, bottom = ((tile + 1) * steps - 1) / a.per;
      // A block keeps its first tile's part in its first place, and its last one's in its second.
      if (bottom > top)
        finishes = gather_tile<R, W>(g, sum, flag, tile, top, bottom, [&](int block) {
          const int second = block * a.per / steps == tile ? 0 : 1;
          return reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(2 * block + second) * kLargeWarps + warp) * (R * W * 32) + lane;
        });
    }
    if (finishes) store_tile<R, W, BF>(g, a.vectors != 0, sum, strip * 256 + n0, tokens * 8 * T + m0, shelf, lane);
    clear();
    count -= run, step = 0, tile += stride;
  }
}

template <int B, int T, bool BF, class Cast>
__device__ __forceinline__ void gemm_large(const GemmPackedArgs& g, const LargeArgs& a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kAcross = T == 16 ? 4 : 8, R = 16 / kAcross, W = T * kAcross / 8;  // warps along N
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), across = warp % kAcross;
  using Source = PackedSource<B, R, T, BF, Cast>;
  const uint32_t slots = shared_address(shared) + Source::kStages * Source::kStage, shelf = slots + kLargeDeep * kLargeWords * B;
  Source source(g, slots, across * (R / 2), lane, warp);
  unsigned* const flag = reinterpret_cast<unsigned*>(shared + Source::kStages * Source::kStage + kLargeDeep * kLargeWords * B + kLargeWarps * kLargeShelf);
  multiply_tiles<R, W, T, BF>(g, a, source, shared, shelf + warp * kLargeShelf, flag, across * 16 * R, warp / kAcross * 8 * W, lane, warp);
}

template <int B, bool BF>
using WholeIntCast = IntCast<B, BF, !BF>;

}  // namespace lpq::cuda

#define LPQ_LARGE_T(name, tiles, bits, bf, cast)                                                                                          \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::kLargeWarps, 1) lpq_large_##name##_t##tiles(                               \
      const __grid_constant__ lpq::cuda::GemmPackedArgs g, const __grid_constant__ lpq::cuda::LargeArgs a) {                              \
    lpq::cuda::gemm_large<bits, tiles, bf, lpq::cuda::cast<bits, bf>>(g, a);                                                              \
  }
// Hopper has kernels of its own and takes these for comparisons alone: the widest tiles of some types, or all with LPQ_LARGE_ALL.
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(LPQ_LARGE_ALL)
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast) \
  LPQ_LARGE_T(name, 4, bits, bf, cast)            \
  LPQ_LARGE_T(name, 8, bits, bf, cast)            \
  LPQ_LARGE_T(name, 16, bits, bf, cast)
#define LPQ_LARGE LPQ_LARGE_ELSEWHERE
#else
#define LPQ_LARGE_ELSEWHERE(name, bits, bf, cast)
#define LPQ_LARGE(name, bits, bf, cast) LPQ_LARGE_T(name, 16, bits, bf, cast)
#endif
