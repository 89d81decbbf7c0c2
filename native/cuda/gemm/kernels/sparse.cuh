// y[m][n] = sum_k x[m][k] W[n][k] [+ bias], W 2:4 sparse along k in Sparse-MARLIN's bytes (docs/sparsity.md), as they
// are: the weight is operand A of mma.sp.m16n8k32, tokens are columns in eights. Written for sm_80 (mma.sp, cp.async).
//
// A warp owns 64 columns: four products of 16 rows, of which row r of product j is column 8 (r % 8) + 4 (r / 8) + j. So
// a lane ends with eight neighbouring outputs of each of its tokens, which leave as one store of 16 bytes. A step is
// 128 k, a group: 512 bytes of codes a bit, 1 KiB of metadata and 128 bytes of scales, which each warp copies for
// itself into the ring's stage; the activations are the block's.
//
// Each block owns an equal run of tiles down a column of tiles and on into the next (MARLIN's stripes). Whoever is last
// with a column that several blocks share adds all parts up in fp32 in the order of K: nobody waits, and no sum depends
// on timing.
//
// Up to 32 tokens, and with bf16: code - 2^(bits-1) is exact in the type of x, and the scale comes in fp32. More tokens
// of f16: the paper's arithmetic, which the verifier emulates, weights f16((code - 2^(bits-1)) s): scales in fp32 would
// take twice the registers.
#pragma once
#include "cuda/gemm/families/sparse.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// The registers of operand A of a product, less the middle code, from a lane's words of it: one of 4 bits, or one of 8
// bits for the rows above and one for those below. magic: 0x64006400 or 0x43004300 from a register. LOP3 takes one
// immediate: written as a constant, it would be two instructions.
template <int Bits, bool BF>
__device__ __forceinline__ void kept_weights(uint32_t (&a)[4], const uint32_t* words, uint32_t magic) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // rows r and r + 8
    if constexpr (Bits == 4 && !BF) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = sub_f16x2((q & 0x000f000fu) | magic, 0x64086408u);                       // less 1024 + 8
      a[2 + h] = fma_x2<false>((q & 0x00f000f0u) | magic, 0x2c002c00u, 0xd480d480u);  // a sixteenth, less 64 + 8
    } else if constexpr (Bits == 4) {
      const uint32_t q = words[0] >> 8 * h;
      a[h] = fma_x2<true>((q & 0x000f000fu) | magic, 0x3f803f80u, 0xc308c308u);  // less 128 + 8
      a[2 + h] = fma_x2<true>((q >> 4 & 0x000f000fu) | magic, 0x3f803f80u, 0xc308c308u);
    } else if constexpr (!BF) {
      a[h] = sub_f16x2(__byte_perm(words[h], magic, 0x5250), 0x64806480u);  // less 1024 + 128
      a[2 + h] = sub_f16x2(__byte_perm(words[h], magic, 0x5351), 0x64806480u);
    } else {
      // Eight bits are one more than bf16 has: 128 + seven bits, and -256 or -128 by the eighth.
#pragma unroll
      for (int later = 0; later < 2; ++later) {
        const uint32_t q = words[h] >> 8 * later;
        a[2 * later + h] = fma_x2<true>((q & 0x007f007fu) | magic, 0x3f803f80u, (q & 0x00800080u) ^ 0xc380c380u);
      }
    }
  }
}

// One warp's step: 64 columns by 128 k. `codes`, `metadata`, `scales`: where this lane finds its own in shared memory,
// four tiles that many bytes apart; x_of(s, t): its row for ldmatrix of the 32 k of tile s and eight t of the tokens.
template <int Bits, int T, bool BF, class Rows>
__device__ __forceinline__ void multiply_step(float (&sum)[4][T][4], uint32_t codes, int codes_apart, uint32_t metadata,
                                              int metadata_apart, uint32_t scales, bool channel, uint32_t magic,
                                              const Rows& x_of) {
  constexpr bool kRounded = T == 8 && !BF,
                 kTogether = T <= 4;  // scales into the weights; or into the sums, once a group or for each product
  // Of column 8 (lane / 4) + 4 i + j: half i of register j.
  uint4 raw = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};  // ones: the scales come at the end
  if (!channel) raw = ld_shared_v4(scales);
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  float part[kTogether ? 4 : 1][kTogether ? T : 1][4];
  if constexpr (kTogether) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int t = 0; t < T; ++t) part[j][t][0] = part[j][t][1] = part[j][t][2] = part[j][t][3] = 0;
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t words[Bits], x[T][4];
#pragma unroll
    for (int v = 0; v < Bits / 4; ++v) {
      const uint4 four = ld_shared_v4(codes + s * codes_apart + 16 * v);
      words[4 * v] = four.x, words[4 * v + 1] = four.y, words[4 * v + 2] = four.z, words[4 * v + 3] = four.w;
    }
    const uint32_t places[2] = {ld_shared(metadata + s * metadata_apart),
                                ld_shared(metadata + s * metadata_apart + 128)};
#pragma unroll
    for (int t = 0; t < T; ++t) ldmatrix_x4(x[t], x_of(s, t));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      kept_weights<Bits, BF>(a, words + j * (Bits / 4), magic);
      if constexpr (kRounded) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = mul_x2<false>(a[i], __byte_perm(pairs[j], 0, i & 1 ? 0x3232 : 0x1010));
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
        const auto multiply_by = [&](float (&c)[4]) {
          if (j & 1) mma_sp_m16n8k32<BF, 1>(c, a, x[t], places[j >> 1]);
          else mma_sp_m16n8k32<BF, 0>(c, a, x[t], places[j >> 1]);
        };
        if constexpr (kTogether) multiply_by(part[j][t]);
        else if constexpr (kRounded) multiply_by(sum[j][t]);
        else {
          float one[4] = {0, 0, 0, 0};
          multiply_by(one);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            sum[j][t][i] = fmaf(to_float(pairs[j] >> 16 * (i >> 1) & 0xffffu, false), one[i], sum[j][t][i]);
        }
      }
    }
  }
  if constexpr (kTogether) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float scale[2] = {to_float(pairs[j] & 0xffffu, false), to_float(pairs[j] >> 16, false)};
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][t][i] = fmaf(scale[i >> 1], part[j][t][i], sum[j][t][i]);
    }
  }
}

template <int T>
__device__ __forceinline__ void clear(float (&sum)[4][T][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int t = 0; t < T; ++t) sum[j][t][0] = sum[j][t][1] = sum[j][t][2] = sum[j][t][3] = 0;
}
template <int T>
__device__ __forceinline__ void add(float (&sum)[4][T][4], int v, float4 more) {
  sum[v / T][v % T][0] += more.x, sum[v / T][v % T][1] += more.y, sum[v / T][v % T][2] += more.z,
      sum[v / T][v % T][3] += more.w;
}
template <int T>
__device__ __forceinline__ float4 vector_of(const float (&sum)[4][T][4], int v) {
  return make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
}

// A column of tiles ends, or the block's share of it: warps along K add up in pairs, blocks that share the column
// through the workspace; whoever has all of it writes y. Then the sums are 0. sync(): of the warps that multiply;
// `leader`: one thread of theirs.
template <int T, bool BF, class Sync>
__device__ __forceinline__ void end_column(const SparseArgs& g, float (&sum)[4][T][4], float4* exchange, unsigned* flag,
                                           int column, int strip, int batch, int wn, int wk, int lane, bool leader,
                                           const Sync& sync) {
  constexpr int kVectors = 4 * T, kPart = kVectors * 32;  // float4s of a warp's sums
  for (int half = 1 << g.log_k >> 1; half > 0; half /= 2) {
    sync();
    if (wk >= half && wk < 2 * half) {
      float4* to = exchange + (((wk - half) << g.log_n) + wn) * kPart + lane;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) to[v * 32] = vector_of(sum, v);
    }
    sync();
    if (wk < half) {
      const float4* from = exchange + ((wk << g.log_n) + wn) * kPart + lane;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) add(sum, v, from[v * 32]);
    }
  }
  // Who shares this column, from the top.
  const int top = column * g.steps / g.per, bottom = ((column + 1) * g.steps - 1) / g.per;
  bool finishes = true;
  if (bottom > top) {
    // A block keeps its first column's part in its first tile, and its last one's in its second.
    const auto part_of = [&](int block) {
      const int second = block * g.per / g.steps == column ? 0 : 1;
      return reinterpret_cast<float4*>(g.partial) + (static_cast<long long>(2 * block + second) * kPart << g.log_n) +
             wn * kPart + lane;
    };
    if (wk == 0) {
      float4* to = part_of(static_cast<int>(blockIdx.x));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) __stcg(to + v * 32, vector_of(sum, v));
    }
    sync();
    if (leader) {
      const unsigned before = atom_inc_acq_rel(g.counters + column);
      *flag = before;
      if (before == static_cast<unsigned>(bottom - top)) g.counters[column] = 0;
    }
    sync();
    finishes = *flag == static_cast<unsigned>(bottom - top);
    if (finishes && wk == 0) {
      const auto take = [&](int block) {
        const float4* from = part_of(block);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) add(sum, v, __ldcg(from + v * 32));
      };
      if (bottom - top == 1) {
        // Two parts make the same sum in either order, and one it still has. Minus 0 becomes 0, as when parts are added
        // to 0.
#pragma unroll
        for (int v = 0; v < kVectors; ++v) add(sum, v, make_float4(0, 0, 0, 0));
        take(top + bottom - static_cast<int>(blockIdx.x));
      } else {
        clear(sum);
        for (int block = top; block <= bottom; ++block) take(block);
      }
    }
  }
  const int nt = (strip << g.log_n) + wn;
  if (finishes && wk == 0 && nt * kSparseColumns < g.n) {
    const int n0 = nt * kSparseColumns + 8 * (lane >> 2);
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = (batch * T + t) * 8 + 2 * (lane & 3) + e;
        if (m >= g.m) continue;
        uint16_t out[8];
#pragma unroll
        for (int f = 0; f < 8; ++f) {  // column n0 + f: half f / 4 of product f % 4
          const int n = n0 + f;
          float v = sum[f % 4][t][2 * (f / 4) + e];
          if (n < g.n) {
            if (g.channel) v *= to_float(reinterpret_cast<const uint16_t*>(g.scales)[n], false);
            if (g.bias) v += to_float(g.bias[n], BF);
          }
          out[f] = from_float(v, BF);
        }
        uint16_t* to = g.y + static_cast<long long>(m) * g.n + n0;
        if (g.vectors && n0 + 8 <= g.n) {
          *reinterpret_cast<uint4*>(to) = make_uint4(out[0] | uint32_t{out[1]} << 16, out[2] | uint32_t{out[3]} << 16,
                                                     out[4] | uint32_t{out[5]} << 16, out[6] | uint32_t{out[7]} << 16);
        } else {
#pragma unroll
          for (int f = 0; f < 8; ++f)
            if (n0 + f < g.n) to[f] = out[f];
        }
      }
  }
  clear(sum);
}

// T: eights of tokens. BF: x, y and bias are bf16.
template <int Bits, int T, bool BF>
__device__ __forceinline__ void gemm_sparse(const SparseArgs& g) {
  unsigned char* const shared = dynamic_shared();
  constexpr int kTile = 128 * Bits, kCodes = 4 * kTile, kSlot = kSparseSlot<Bits>, kSlab = 8 * T * 128;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int wn = warp & ((1 << g.log_n) - 1), wk = warp >> g.log_n;
  const int n_tiles = g.n_pad / kSparseColumns, k_units = g.k_pad / kSparseK;
  const SparseShared place = sparse_shared(Bits, T, g.log_n, g.log_k, g.stages);
  const uint32_t ring = shared_address(shared), ring_end = ring + place.exchange;
  float4* const exchange = reinterpret_cast<float4*>(shared + place.exchange);
  unsigned* const flag = reinterpret_cast<unsigned*>(shared + place.flag);

  const int first = blockIdx.x * g.per, count = max(0, min(g.per, g.strips * g.batches * g.steps - first));
  int column = first / g.steps, step = first - column * g.steps;
  int batch = column / g.strips, strip = column - batch * g.strips;

  // What this thread copies, a step after the other.
  int load_batch = batch, load_strip = strip, load_step = step;
  uint32_t load_stage = ring;
  // A register of the thread's own: from an address with a part in a uniform register ptxas 13.0 makes copies whose
  // cache descriptor it never sets, which the device refuses as an illegal instruction.
  const uint32_t w_first = ring + place.x + warp * kSlot + lane * 16;
  uint32_t w_to = w_first;
  const long long code_row = static_cast<long long>(n_tiles) * kTile,
                  meta_row = static_cast<long long>(n_tiles) * 256;  // of 32 k
  const unsigned char *codes_from, *meta_from, *scales_from;
  bool w_any = false;
  int w_left = 0, x_tokens = 0, x_left = 0;
  const uint16_t* x_from = nullptr;
  const int x_chunk = threadIdx.x & ((16 << g.log_k) - 1), x_row = threadIdx.x >> (4 + g.log_k), x_rows = 2 << g.log_n;
  const long long x_jump = static_cast<long long>(x_rows) * g.k;
  const auto aim = [&] {
    const int nt = (load_strip << g.log_n) + wn, unit = (load_step << g.log_k) + wk, token = load_batch * 8 * T;
    w_any = nt < n_tiles, w_left = k_units - unit;
    codes_from = g.weights + nt * static_cast<long long>(kTile) + unit * 4 * code_row + lane * 16;
    // Half a warp copies one tile's metadata.
    meta_from = g.metadata + nt * 256ll + (unit * 4 + (lane >> 4)) * meta_row + (lane & 15) * 16;
    scales_from = g.scales + (static_cast<long long>(unit) * g.n_pad + nt * kSparseColumns) * 2 + lane * 16;
    const int k0 = (load_step * kSparseK) << g.log_k;
    x_left = g.k - k0 - x_chunk * 8;
    x_from = g.x + static_cast<long long>(token + x_row) * g.k + k0 + x_chunk * 8;
    x_tokens = min(8 * T, g.m - token);
  };
  aim();
  const auto load = [&](bool any) {
    if (any) {
      const uint32_t slab = load_stage + (x_chunk >> 3) * kSlab;
      const uint16_t* from = x_from;
      for (int row = x_row; row < x_tokens; row += x_rows, from += x_jump)
        cp_async_16(slab + row * 128 + (((x_chunk ^ row) & 7) << 4), from, x_left > 0 ? 16 : 0);
      if (w_any && w_left > 0) {
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int v = 0; v < Bits / 4; ++v)
            cp_async_16_hint(w_to + s * kTile + v * 512, codes_from + s * code_row + v * 512, g.policy);
#pragma unroll
        for (int s = 0; s < 2; ++s) cp_async_16_hint(w_to + kCodes + s * 512, meta_from + 2 * s * meta_row, g.policy);
        if (lane < 8 && !g.channel) cp_async_16_hint(w_to + kCodes + 1024, scales_from, g.policy);
      }
      codes_from += (4 * code_row) << g.log_k, meta_from += (4 * meta_row) << g.log_k,
          scales_from += (2ll * g.n_pad) << g.log_k;
      w_left -= 1 << g.log_k, x_left -= kSparseK << g.log_k, x_from += kSparseK << g.log_k;
      if (++load_step == g.steps) {
        load_step = 0;
        if (++load_strip == g.strips) load_strip = 0, ++load_batch;
        aim();
      }
      load_stage += place.stage, w_to += place.stage;
      if (load_stage == ring_end) load_stage = ring, w_to = w_first;
    }
    cp_async_commit();
  };

  float sum[4][T][4];
  clear(sum);

  const int row7 = lane & 7, matrix = lane >> 3;
  for (int s = 0; s < g.stages - 1; ++s) load(s < count);

  uint32_t stage = ring;
  for (int at = 0; at < count; ++at) {
    switch (g.stages) {
      case 2: cp_async_wait<0>(); break;
      case 3: cp_async_wait<1>(); break;
      case 4: cp_async_wait<2>(); break;
      case 5: cp_async_wait<3>(); break;
      default: cp_async_wait<4>();
    }
    __syncthreads();
    load(at + g.stages - 1 < count);

    if ((strip << g.log_n) + wn < n_tiles && (step << g.log_k) + wk < k_units) {
      const uint32_t slot = stage + place.x + warp * kSlot, x_at = stage + 2 * wk * kSlab + row7 * 128;
      multiply_step<Bits, T, BF>(sum, slot + lane * (4 * Bits), kTile, slot + kCodes + lane * 4, 256,
                                 slot + kCodes + 1024 + (lane >> 2) * 16, g.channel != 0, g.magic, [&](int s, int t) {
                                   return x_at + (s >> 1) * kSlab + t * 1024 + ((((s & 1) * 4 + matrix) ^ row7) << 4);
                                 });
    }
    stage += place.stage;
    if (stage == ring_end) stage = ring;

    const bool column_ends = ++step == g.steps;
    if (column_ends || at + 1 == count)
      end_column<T, BF>(g, sum, exchange, flag, column, strip, batch, wn, wk, lane, threadIdx.x == 0,
                        [] { __syncthreads(); });
    if (column_ends) {
      step = 0, ++column;
      if (++strip == g.strips) strip = 0, ++batch;
    }
  }
}

#if LPQ_HAS_WGMMA
// Hopper's: a group of warps more, of which one copies everything for the others through the bulk engine, a box a
// tensor and step: no copies and no barrier of the block in the way of those that multiply.
template <int Bits, int T, bool BF>
__device__ __forceinline__ void gemm_sparse_bulk(const SparseArgs& g, const SparseMaps& maps) {
  unsigned char* const shared = dynamic_shared();
  constexpr int kTile = 128 * Bits, kSlab = 8 * T * 128;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0),
            warps = 1 << (g.log_n + g.log_k);
  const int n_tiles = g.n_pad / kSparseColumns, k_units = g.k_pad / kSparseK;
  const SparseShared place = sparse_shared(Bits, T, g.log_n, g.log_k, g.stages);
  // The stage: activations; rows of tiles of codes, of metadata, and of scales.
  const int code_row = kTile << g.log_n, meta_row = 256 << g.log_n;
  const int codes_at = place.x, meta_at = codes_at + (code_row << (2 + g.log_k)),
            scales_at = meta_at + (meta_row << (2 + g.log_k));
  const uint32_t ring = shared_address(shared), full = ring + place.flag + 16, empty = full + 8 * kMostSparseStages;
  const int first = blockIdx.x * g.per, count = max(0, min(g.per, g.strips * g.batches * g.steps - first));
  int column = first / g.steps, step = first - column * g.steps;
  int batch = column / g.strips, strip = column - batch * g.strips;
  if (threadIdx.x < static_cast<unsigned>(g.stages)) {
    mbarrier_init(full + 8 * threadIdx.x, 1);
    mbarrier_init(empty + 8 * threadIdx.x, warps);
  }
  fence_mbarrier_init();
  __syncthreads();

  if (warp >= warps) {
    setmaxnreg_dec<24>();
    if (warp > warps || lane != 0) return;
    const int bytes = (kSlab * 2 << g.log_k) + (4 * kTile + 4 * 256 + (g.channel ? 0 : 128)) * warps,
              ahead = min(count, g.stages);
    const auto copy_weights_of = [&](int slot, int of_strip, int of_step) {
      const uint32_t stage = ring + slot * place.stage, barrier = full + 8 * slot;
      const int unit = of_step << g.log_k, nt = of_strip << g.log_n;
      mbarrier_arrive_expect_tx(barrier, bytes);
      tma_load_3d_evict_first(stage + codes_at, &maps.weights, 0, nt, 4 * unit, barrier);
      tma_load_3d_evict_first(stage + meta_at, &maps.metadata, 0, nt, 4 * unit, barrier);
      if (!g.channel) tma_load_3d_evict_first(stage + scales_at, &maps.scales, 0, nt, unit, barrier);
    };
    // Weights of the first stages, which the operation before did not write.
    for (int at = 0, of_strip = strip, of_step = step; at < ahead; ++at) {
      copy_weights_of(at, of_strip, of_step);
      if (++of_step == g.steps) {
        of_step = 0;
        if (++of_strip == g.strips) of_strip = 0;
      }
    }
    if (g.overlap) griddepcontrol_wait_and_launch();
    int slot = 0, parity = 1;
    for (int at = 0; at < count; ++at) {
      if (at >= ahead) {
        mbarrier_wait_parity(empty + 8 * slot, parity);
        copy_weights_of(slot, strip, step);
      }
      tma_load_3d(ring + slot * place.stage, &maps.x, 0, batch * 8 * T, 2 * (step << g.log_k), full + 8 * slot);
      if (++slot == g.stages) slot = 0, parity ^= 1;
      if (++step == g.steps) {
        step = 0;
        if (++strip == g.strips) strip = 0, ++batch;
      }
    }
    return;
  }

  if (T <= 2) setmaxnreg_inc<112>();
  else setmaxnreg_inc<240>();
  if (g.overlap) griddepcontrol_wait_and_launch();
  const int wn = warp & ((1 << g.log_n) - 1), wk = warp >> g.log_n;
  float sum[4][T][4];
  clear(sum);
  const uint32_t own_codes = ring + codes_at + 4 * wk * code_row + wn * kTile + lane * (4 * Bits),
                 own_meta = ring + meta_at + 4 * wk * meta_row + wn * 256 + lane * 4;
  const uint32_t own_scales = ring + scales_at + ((wk << g.log_n) + wn) * 128 + (lane >> 2) * 16,
                 own_x = ring + 2 * wk * kSlab + (lane & 7) * 128;
  const int row7 = lane & 7, matrix = lane >> 3;
  int slot = 0, parity = 0;
  for (int at = 0; at < count; ++at) {
    mbarrier_wait_parity(full + 8 * slot, parity);
    if ((strip << g.log_n) + wn < n_tiles && (step << g.log_k) + wk < k_units) {
      const uint32_t stage = slot * place.stage;
      multiply_step<Bits, T, BF>(sum, own_codes + stage, code_row, own_meta + stage, meta_row, own_scales + stage,
                                 g.channel != 0, g.magic, [&](int s, int t) {
                                   return own_x + stage + (s >> 1) * kSlab + t * 1024 +
                                          ((((s & 1) * 4 + matrix) ^ row7) << 4);
                                 });
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * slot);
    if (++slot == g.stages) slot = 0, parity ^= 1;

    const bool column_ends = ++step == g.steps;
    if (column_ends || at + 1 == count)
      end_column<T, BF>(g, sum, reinterpret_cast<float4*>(shared + place.exchange),
                        reinterpret_cast<unsigned*>(shared + place.flag), column, strip, batch, wn, wk, lane,
                        threadIdx.x == 0, [&] { bar_sync(1, 32 * warps); });
    if (column_ends) {
      step = 0, ++column;
      if (++strip == g.strips) strip = 0, ++batch;
    }
  }
}
#endif

// Warps: 16 while their sums fit 128 registers.
template <int T>
constexpr int kSparseThreads = T <= 2 ? 512 : 256;

}  // namespace lpq::cuda

#if LPQ_HAS_WGMMA
#define LPQ_SPARSE_BULK(name, bits, tiles, bf)                                            \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kSparseThreads<tiles> + 128, 1) \
      lpq_sparse_##name##_h##tiles(const __grid_constant__ lpq::cuda::SparseArgs g,       \
                                   const __grid_constant__ lpq::cuda::SparseMaps maps) {  \
    lpq::cuda::gemm_sparse_bulk<bits, tiles, bf>(g, maps);                                \
  }
#else
#define LPQ_SPARSE_BULK(name, bits, tiles, bf)
#endif
// Built for sm_90a alone, the others would never run.
#if !LPQ_PORTABLE_RUNS
#define LPQ_SPARSE_PLAIN(name, bits, tiles, bf)
#else
#define LPQ_SPARSE_PLAIN(name, bits, tiles, bf)                                       \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kSparseThreads<tiles>, 1)   \
      lpq_sparse_##name##_t##tiles(const __grid_constant__ lpq::cuda::SparseArgs g) { \
    lpq::cuda::gemm_sparse<bits, tiles, bf>(g);                                       \
  }
#endif
#define LPQ_SPARSE_T(name, bits, tiles, bf) \
  LPQ_SPARSE_BULK(name, bits, tiles, bf)    \
  LPQ_SPARSE_PLAIN(name, bits, tiles, bf)
#define LPQ_SPARSE(name, bits, bf) \
  LPQ_SPARSE_T(name, bits, 1, bf)  \
  LPQ_SPARSE_T(name, bits, 2, bf)  \
  LPQ_SPARSE_T(name, bits, 4, bf)  \
  LPQ_SPARSE_T(name, bits, 8, bf)
