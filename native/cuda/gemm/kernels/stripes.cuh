// y[m][n] = sum_k x[m][k] W[n][k] [+ bias], W in fragments of mma.m16n8k16 as MARLIN and TurboMind store them: the
// kernel that marlin.cuh and turbomind.cuh give their forms of weights and scales to. Written for sm_80
// (mma.sync, cp.async).
//
// The fragments of a 16x16 tile of operand B (columns n) are those of operand A whose rows are n, so the weights are
// operand A here whichever way they were stored, and tokens come in eights instead of sixteens.
//
// MARLIN's mechanisms (its sections 3.3 and 3.4):
//  - weights pass through L2 with evict-first. The policy comes with the arguments: `createpolicy` inside the kernel is
//    dropped by ptxas 13 for sm_90, which leaves the copy with an undefined descriptor and the device with an illegal
//    instruction;
//  - stripes: each block owns an equal run of tiles, down a column of tiles and on into the next (`per`);
//  - a column that several blocks share is added up from the bottom block to the top one, in fp32, each waiting for the
//    one
//    below: the bottom block began the column and is done first. MARLIN does so in fp16 in the output;
//  - a warp owns 64 columns; warps split K besides (log_k) and add up in pairs through shared memory;
//  - scales are read from shared memory once for every two sub-tiles of 16 k;
//  - more than 8 T tokens: the columns of tiles are counted `batches` times over, as if W were repeated (`batches`).
//
// Up to 16 tokens, with bf16 and with floats: codes become exact numbers (code - zero) of x's type, products are summed
// in fp32 for 32 k, and scales come in fp32, so that weights are not rounded. TurboMind's {s, t}: y = s P + (t + middle
// s) S with P the product of (code - middle), S the sum of x. More tokens of f16 and integers (Scaled): both papers'
// arithmetic, which the verifier emulates: weights fp16((code - zero) s) or fp16(code s + t), and the tensor core adds
// to the sums themselves. Scales in fp32 would take two instructions for every product and twice the registers.
#pragma once
#include "cuda/gemm/families/stripes.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// --- unsigned codes of 4 and 8 bits, less a zero point

// What is taken off the codes of rows n (low half of `zero`) and n + 8 (high half): ready to use, for one tile of 16
// columns.
template <int Bits, bool BF>
struct Offsets;
template <>
struct Offsets<4, false> {
  uint32_t low[2], high[2];  // 1024 + z, and -(64 + z) for codes that stand 16 times as high
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t l = zero | 0x64006400u, h = zero << 4 | 0xd400d400u;
    low[0] = __byte_perm(l, 0, 0x1010), low[1] = __byte_perm(l, 0, 0x3232);
    high[0] = __byte_perm(h, 0, 0x1010), high[1] = __byte_perm(h, 0, 0x3232);
  }
};
template <>
struct Offsets<4, true> {
  uint32_t minus[2];  // -(128 + z)
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = zero | 0xc300c300u;
    minus[0] = __byte_perm(v, 0, 0x1010), minus[1] = __byte_perm(v, 0, 0x3232);
  }
};
template <>
struct Offsets<8, false> {
  uint32_t plus[2];  // 1024 + z
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = zero | 0x64006400u;
    plus[0] = __byte_perm(v, 0, 0x1010), plus[1] = __byte_perm(v, 0, 0x3232);
  }
};
// Eight bits are one more than bf16 has: 128 + seven bits, and -256 or -128 by the eighth, exactly code - 128.
__device__ __forceinline__ uint32_t bytes_less_128(uint32_t v) {
  return fma_x2<true>((v & 0x007f007fu) | 0x43004300u, 0x3f803f80u, (v & 0x00800080u) ^ 0xc380c380u);
}
template <>
struct Offsets<8, true> {
  uint32_t minus[2];  // 128 - z
  __device__ __forceinline__ explicit Offsets(uint32_t zero) {
    const uint32_t v = bytes_less_128(zero) ^ 0x80008000u;
    minus[0] = __byte_perm(v, 0, 0x1010), minus[1] = __byte_perm(v, 0, 0x3232);
  }
};

// The registers of operand A from the codes of a 16x16 tile: words[0] (4 bits), or words[0] of rows n and words[1] of
// rows n + 8.
// Middle: the zero point is the middle code, which spares eight-bit codes of bf16 an addition.
// magic: 0x64006400 or 0x43004300 from a register. LOP3 takes one immediate: written as a constant, it would be two
// instructions.
template <int Bits, bool BF, bool Middle>
__device__ __forceinline__ void less_zero(uint32_t (&a)[4], const uint32_t* words, const Offsets<Bits, BF>& o,
                                          uint32_t magic) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // rows n and n + 8
    if constexpr (Bits == 4 && !BF) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = sub_f16x2((q & 0x000f000fu) | magic, o.low[h]);
      a[2 + h] = fma_x2<false>((q & 0x00f000f0u) | magic, 0x2c002c00u, o.high[h]);
    } else if constexpr (Bits == 4) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = fma_x2<true>((q & 0x000f000fu) | magic, 0x3f803f80u, o.minus[h]);
      a[2 + h] = fma_x2<true>((q >> 4 & 0x000f000fu) | magic, 0x3f803f80u, o.minus[h]);
    } else if constexpr (!BF) {
      a[h] = sub_f16x2(__byte_perm(words[h], magic, 0x5250), o.plus[h]);
      a[2 + h] = sub_f16x2(__byte_perm(words[h], magic, 0x5351), o.plus[h]);
    } else {
      a[h] = bytes_less_128(words[h]);
      a[2 + h] = bytes_less_128(words[h] >> 8);
      if (!Middle) {
        a[h] = fma_x2<true>(a[h], 0x3f803f80u, o.minus[h]);
        a[2 + h] = fma_x2<true>(a[2 + h], 0x3f803f80u, o.minus[h]);
      }
    }
  }
}

// --- products

// c = A B
template <bool BF>
__device__ __forceinline__ void multiply_first(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  c[0] = c[1] = c[2] = c[3] = 0;
  mma_m16n8k16<BF>(c, a, b0, b1);
}

// --- the kernel

// Form: kBits, kScaleBytes of a column and group, kZeros (codes of zero points in `zeros`), kFused ({s, t} in a scale),
// kChannel (knows
//   one scale a row), kScaled (scaled(a, words, j, zeros, raw, magic): registers of weights in f16), and fetch(words of
//   64 columns x 16 k, address, lane), offset(zeros, j) and expand(a, words, j, offset, magic): registers of tile j,
//   read_scales(raw, address, lane), scale(raw, i, bf16) and shift(raw, i): of row 8 i + lane / 4 of the 64.
// T: eights of tokens. XB: x, y and bias are bf16. Warps along N and K as the arguments say.
template <class Form, int T, bool XB>
__device__ __forceinline__ void gemm_stripes(const StripeArgs& g) {
  unsigned char* const shared = dynamic_shared();
  constexpr int kBits = Form::kBits, kScale = Form::kScaleBytes, kSlab = 8 * T * 128;
  constexpr int kSub = kSubTiles<kBits>, kWarpK = 16 * kSub;  // of a warp, a step
  constexpr int kSlot = kSub * 128 * kBits;                   // its codes
  constexpr int kZeroBytes = Form::kZeros ? 8 * kBits : 0;    // of 64 columns and a group
  constexpr int kFold = 2;                                    // sub-tiles that share a reading of the scales
  constexpr bool kScaled = Form::kScaled && T >= 4;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int wn = warp & ((1 << g.log_n) - 1), wk = warp >> g.log_n;
  const int n_tiles = g.n_pad / kTileColumns;
  const int step_k = kWarpK << g.log_k;
  const int rows_of_scales = g.channel ? 1 : max(1, step_k >> g.group_shift);
  const int x_bytes = max(1, step_k >> 6) * kSlab;
  const int weight_bytes = kSlot << (g.log_n + g.log_k);
  const int scale_row = (kTileColumns * kScale) << g.log_n, zero_row = kZeroBytes << g.log_n;
  const int stage_bytes = (x_bytes + weight_bytes + rows_of_scales * (scale_row + zero_row) + 127) & ~127;
  const uint32_t ring = shared_address(shared), ring_end = ring + g.stages * stage_bytes;
  float4* const exchange = reinterpret_cast<float4*>(shared + g.stages * stage_bytes);
  const uint32_t magic = g.magic;

  // The tiles of this block: `count` in a row down columns of tiles, from (column, step).
  const int columns = g.strips * g.batches, first = blockIdx.x * g.per,
            count = max(0, min(g.per, columns * g.steps - first));
  int column = first / g.steps, step = first - column * g.steps;
  // The batch and the strip of a column, without dividing each time.
  const auto wrap = [&](int& batch, int& strip) {
    while (strip >= g.strips) strip -= g.strips, ++batch;
  };
  int batch = 0, strip = column;
  wrap(batch, strip);

  // What this thread copies, a step after the other: codes of its own warp, its share of the block's activations and
  // scales.
  constexpr int kLogChunks = kSub == 4 ? 3 : 2;  // eights of k of a warp's share
  int load_batch = batch, load_strip = strip, load_step = step;
  uint32_t load_stage = ring;
  // A register of the thread's own: from an address with a part in a uniform register ptxas 13.0 makes copies whose
  // cache descriptor it never sets (desc[UR1]), which the device refuses as an illegal instruction.
  const uint32_t w_first = ring + x_bytes + warp * kSlot + lane * 16;
  uint32_t w_to = w_first;
  const int x_chunk = threadIdx.x & ((1 << (kLogChunks + g.log_k)) - 1), x_row = threadIdx.x >> (kLogChunks + g.log_k),
            x_rows = (32 >> kLogChunks) << g.log_n;
  const long long x_jump = static_cast<long long>(x_rows) * g.k,
                  w_jump = (static_cast<long long>(kSub) << g.log_k) * g.k_stride;
  // Scales and zero points of a step are at most one copy a thread.
  constexpr int kScaleLog = kScale == 1   ? 2
                            : kScale == 2 ? 3
                                          : 4,
                kZeroLog = kBits == 4 ? 1 : 2;  // copies for 64 columns and a group
  const int s_row = threadIdx.x >> (kScaleLog + g.log_n), s_chunk = threadIdx.x & ((1 << (kScaleLog + g.log_n)) - 1);
  const int z_row = threadIdx.x >> (kZeroLog + g.log_n), z_chunk = threadIdx.x & ((1 << (kZeroLog + g.log_n)) - 1);
  const int s_pitch = g.n_pad * kScale, z_pitch = n_tiles * kZeroBytes;
  const unsigned char* w_from;
  const uint16_t* x_from;
  int w_left, x_left, x_tokens, load_k, s_at, z_at;
  const auto aim = [&] {
    const int nt = (load_strip << g.log_n) + wn, token = (g.first_batch + load_batch) * 8 * T;
    load_k = load_step * step_k;
    w_from = g.weights + (2 * nt + lane / (4 * kBits)) * g.n_stride + lane % (4 * kBits) * 16 +
             ((load_step << g.log_k) + wk) * kSub * g.k_stride;
    w_left = nt < n_tiles ? g.k_pad - load_k - wk * kWarpK : 0;
    x_from = g.x + static_cast<long long>(token + x_row) * g.k + load_k + x_chunk * 8;
    x_left = g.k - load_k - x_chunk * 8;
    x_tokens = min(8 * T, g.m - token);
    s_at = (load_strip << g.log_n) * (kTileColumns * kScale) + s_chunk * 16;
    z_at = (load_strip << g.log_n) * kZeroBytes + z_chunk * 16;
    if (g.channel || s_row >= rows_of_scales || s_at >= s_pitch) s_at = -1;
    if (z_row >= rows_of_scales || z_at >= z_pitch) z_at = -1;
  };
  aim();
  const auto load = [&](bool any) {
    if (any) {
      const unsigned char* codes = w_from;
#pragma unroll
      for (int s = 0; s < kSub; ++s, codes += g.k_stride) {
        if (16 * s < w_left) {
#pragma unroll
          for (int v = 0; v < kBits / 4; ++v)
            cp_async_16_hint(w_to + s * (128 * kBits) + v * 512, codes + v * g.n_stride, g.policy);
        }
      }
      const uint16_t* from = x_from;
      const uint32_t slab = load_stage + (x_chunk >> 3) * kSlab;
      const int bytes = x_left > 0 ? 16 : 0;
      for (int row = x_row; row < x_tokens; row += x_rows, from += x_jump)
        cp_async_16(slab + row * 128 + (((x_chunk ^ row) & 7) << 4), from, bytes);
      const uint32_t side = load_stage + x_bytes + weight_bytes + threadIdx.x * 16;
      const int group = g.channel ? 0 : load_k >> g.group_shift;
      if (s_at >= 0 && group + s_row < g.groups)
        cp_async_16(side, g.scales + (static_cast<long long>(group + s_row) * s_pitch + s_at), 16);
      if constexpr (Form::kZeros) {
        if (z_at >= 0 && group + z_row < g.groups)
          cp_async_16(side + rows_of_scales * scale_row,
                      g.zeros + (static_cast<long long>(group + z_row) * z_pitch + z_at), 16);
      }
      w_from += w_jump, w_left -= step_k, x_from += step_k, x_left -= step_k, load_k += step_k;
      if (++load_step == g.steps) {
        load_step = 0, ++load_strip;
        wrap(load_batch, load_strip);
        aim();
      }
      load_stage += stage_bytes, w_to += stage_bytes;
      if (load_stage == ring_end) load_stage = ring, w_to = w_first;
    }
    cp_async_commit();
  };

  float sum[4][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int t = 0; t < T; ++t) sum[j][t][0] = sum[j][t][1] = sum[j][t][2] = sum[j][t][3] = 0;
  };
  clear();

  // Where this lane's row of ldmatrix lies: one tile of tokens by four eights of k, or two by two.
  const int row7 = lane & 7, matrix = lane >> 3;
  const int own_k = wk * kWarpK, first_chunk = own_k >> 3 & 7;
  const uint32_t slab_at = (own_k >> 6) * kSlab + (T == 1 ? row7 : row7 + 8 * (matrix >> 1)) * 128;
  const int column_of_lane = first_chunk + (T == 1 ? matrix : matrix & 1);

  for (int s = 0; s < g.stages - 1; ++s) load(s < count);

  uint32_t stage = ring;
  for (int at = 0; at < count; ++at) {
    if (g.stages == 4) cp_async_wait<2>();
    else if (g.stages == 3) cp_async_wait<1>();
    else cp_async_wait<0>();
    __syncthreads();
    // Half of the warps of each quarter of the multiprocessor copy first and half multiply first.
    const bool more = at + g.stages - 1 < count, late = (warp & 4) != 0;
    if (!late) load(more);

    const int nt = (strip << g.log_n) + wn, k_tile = step * step_k + own_k, left = nt < n_tiles ? g.k_pad - k_tile : 0;
    const uint32_t slot = stage + x_bytes + warp * kSlot, side = stage + x_bytes + weight_bytes;
    const int first_group = step * step_k >> g.group_shift;
    // What lanes take from shared memory for a sub-tile, and for its scales and zero points.
    const auto take_x = [&](uint32_t (&x)[2 * T], int s) {
#pragma unroll
      for (int t = 0; t < T; t += 2) {
        uint32_t r[4];
        ldmatrix_x4(r, stage + slab_at + t * 1024 + (((column_of_lane + 2 * s) ^ row7) << 4));
        x[2 * t] = r[0], x[2 * t + 1] = r[1], x[2 * t + 2] = r[2], x[2 * t + 3] = r[3];
      }
    };
    const auto take_scales = [&](uint32_t (&raw)[Form::kRaw], uint2& zeros, int s) {
      const int row = g.channel ? 0 : ((k_tile + 16 * s) >> g.group_shift) - first_group;
      if (Form::kChannel && g.channel) {
#pragma unroll
        for (int i = 0; i < Form::kRaw; ++i) raw[i] = 0x3c003c00u;  // ones: the scales come at the end
      } else {
        Form::read_scales(raw, side + row * scale_row + wn * (kTileColumns * kScale), lane);
      }
      if constexpr (Form::kZeros) {
        const uint32_t from =
            side + rows_of_scales * scale_row + row * zero_row + wn * kZeroBytes + (lane >> 2) * kBits;
        if (kBits == 4) zeros.x = ld_shared(from);
        else zeros = ld_shared_v2(from);
      }
    };
    if constexpr (kScaled) {
      // While a sub-tile is multiplied, the next one's registers are on their way.
      uint32_t words[2][kBits], x[2][2 * T], raw[Form::kRaw];
      uint2 zeros = make_uint2(0, 0);
      if (left > 0) {
        Form::fetch(words[0], slot, lane);
        take_x(x[0], 0);
      }
#pragma unroll
      for (int s = 0; s < kSub; ++s) {
        if (16 * s >= left) break;
        if (s % kFold == 0) take_scales(raw, zeros, s);
        if (s + 1 < kSub) {
          Form::fetch(words[(s + 1) & 1], slot + (s + 1) * (128 * kBits), lane);
          take_x(x[(s + 1) & 1], s + 1);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t a[4];
          Form::scaled(a, words[s & 1], j, zeros, raw, magic);
#pragma unroll
          for (int t = 0; t < T; ++t) mma_m16n8k16<XB>(sum[j][t], a, x[s & 1][2 * t], x[s & 1][2 * t + 1]);
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < kSub / 2; ++half) {  // two sub-tiles
        if (32 * half >= left) break;
        uint32_t words[2][kBits];
#pragma unroll
        for (int s = 0; s < 2; ++s) Form::fetch(words[s], slot + (2 * half + s) * (128 * kBits), lane);
        uint32_t x[2][2 * T];
        if constexpr (T == 1) {
          uint32_t r[4];
          ldmatrix_x4(r, stage + slab_at + (((column_of_lane + 4 * half) ^ row7) << 4));
          x[0][0] = r[0], x[0][1] = r[1], x[1][0] = r[2], x[1][1] = r[3];
        } else {
          take_x(x[0], 2 * half);
          take_x(x[1], 2 * half + 1);
        }
        uint32_t raw[Form::kRaw];
        uint2 zeros = make_uint2(0, 0);
        take_scales(raw, zeros, 2 * half);
        if constexpr (Form::kFused) {
          constexpr uint32_t kOne = XB ? 0x3f803f80u : 0x3c003c00u;
          const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
#pragma unroll
          for (int t = 0; t < T; ++t) {
            float total[4];
            multiply_first<XB>(total, ones, x[0][2 * t], x[0][2 * t + 1]);
            mma_m16n8k16<XB>(total, ones, x[1][2 * t], x[1][2 * t + 1]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                sum[j][t][i] = fmaf(Form::shift(raw, 2 * j + (i >> 1)), total[i], sum[j][t][i]);
          }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const typename Form::Offset offset = Form::offset(zeros, j);
          const float scale[2] = {Form::scale(raw, 2 * j, g.scale_bf16 != 0),
                                  Form::scale(raw, 2 * j + 1, g.scale_bf16 != 0)};
          uint32_t a[kFold][4];
#pragma unroll
          for (int s = 0; s < kFold; ++s) Form::expand(a[s], words[s], j, offset, magic);
          // Four eights of tokens at a time: what more parts would hold in registers is spilled.
          constexpr int kParts = T < 4 ? T : 4;
#pragma unroll
          for (int t0 = 0; t0 < T; t0 += kParts) {
            float part[kParts][4];
#pragma unroll
            for (int s = 0; s < kFold; ++s)
#pragma unroll
              for (int t = 0; t < kParts; ++t) {
                if (s == 0) multiply_first<XB>(part[t], a[s], x[s][2 * (t0 + t)], x[s][2 * (t0 + t) + 1]);
                else mma_m16n8k16<XB>(part[t], a[s], x[s][2 * (t0 + t)], x[s][2 * (t0 + t) + 1]);
              }
#pragma unroll
            for (int t = 0; t < kParts; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[j][t0 + t][i] = fmaf(scale[i >> 1], part[t][i], sum[j][t0 + t][i]);
          }
        }
      }
    }
    if (late) load(more);
    stage += stage_bytes;
    if (stage == ring_end) stage = ring;

    const bool column_ends = ++step == g.steps;
    if (column_ends || at + 1 == count) {
      const auto give = [&](float4* to) {
#pragma unroll
        for (int v = 0; v < 4 * T; ++v)
          to[v * 32] =
              make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
      };
      const auto take = [&](const float4* from) {
#pragma unroll
        for (int v = 0; v < 4 * T; ++v) {
          const float4 other = from[v * 32];
          sum[v / T][v % T][0] += other.x, sum[v / T][v % T][1] += other.y, sum[v / T][v % T][2] += other.z,
              sum[v / T][v % T][3] += other.w;
        }
      };
      const int warps_k = 1 << g.log_k;
      const int tile = 4 * T * 32;  // float4s of a warp's sums
      for (int half = warps_k / 2; half > 0; half /= 2) {
        __syncthreads();
        if (wk >= half && wk < 2 * half) give(exchange + (((wk - half) << g.log_n) + wn) * tile + lane);
        __syncthreads();
        if (wk < half) take(exchange + ((wk << g.log_n) + wn) * tile + lane);
      }
      // Who shares this column, counted from its bottom.
      const int slot = ((column + 1) * g.steps - 1) / g.per, sharers = slot - column * g.steps / g.per + 1,
                rank = slot - static_cast<int>(blockIdx.x);
      float4* const mine =
          reinterpret_cast<float4*>(g.partial) + (static_cast<long long>((slot << g.log_n) + wn)) * tile + lane;
      if (rank > 0) {
        if (threadIdx.x == 0) {
          wait_for_count(g.counters + slot, static_cast<unsigned>(rank));
          if (rank + 1 == sharers) g.counters[slot] = 0;
        }
        __syncthreads();
        if (wk == 0) {
#pragma unroll
          for (int v = 0; v < 4 * T; ++v) {
            const float4 below = __ldcg(mine + v * 32);
            sum[v / T][v % T][0] += below.x, sum[v / T][v % T][1] += below.y, sum[v / T][v % T][2] += below.z,
                sum[v / T][v % T][3] += below.w;
          }
        }
      }
      if (rank + 1 < sharers) {
        if (wk == 0) {
#pragma unroll
          for (int v = 0; v < 4 * T; ++v)
            __stcg(mine + v * 32,
                   make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]));
          __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(g.counters + slot, 1u);
      } else if (wk == 0 && nt < n_tiles) {
        const int token = (g.first_batch + batch) * 8 * T + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int n = nt * kTileColumns + 16 * j + 8 * h + (lane >> 2);
            if (n >= g.n) continue;
            const float bias = g.bias ? to_float(g.bias[n], XB) : 0.0f;
            // Per channel: the accumulators' order, 32 columns at a time.
            const float scale = g.channel ? Form::channel_scale(g.scales, n) : 1.0f;
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int m = token + 8 * t + e;
                const float v = g.channel ? sum[j][t][2 * h + e] * scale : sum[j][t][2 * h + e];
                if (m < g.m) g.y[static_cast<long long>(m) * g.n + n] = from_float(v + bias, XB);
              }
          }
      }
      clear();
    }
    if (column_ends) {
      step = 0, ++column, ++strip;
      wrap(batch, strip);
    }
  }
}

// Warps: 16 while their sums fit 128 registers.
template <int T>
constexpr int kStripeThreads = T <= 2 ? 512 : 256;

}  // namespace lpq::cuda

#define LPQ_STRIPES_T(name, form, tiles, bf)                                        \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kStripeThreads<tiles>, 1) \
      lpq_##name##_t##tiles(const __grid_constant__ lpq::cuda::StripeArgs g) {      \
    lpq::cuda::gemm_stripes<form, tiles, bf>(g);                                    \
  }
#define LPQ_STRIPES(name, form, bf) \
  LPQ_STRIPES_T(name, form, 1, bf)  \
  LPQ_STRIPES_T(name, form, 2, bf)  \
  LPQ_STRIPES_T(name, form, 4, bf)  \
  LPQ_STRIPES_T(name, form, 8, bf)
