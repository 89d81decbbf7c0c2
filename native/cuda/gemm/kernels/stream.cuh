// The same product as packed.cuh for few tokens (8 T <= 16), built to keep bytes in flight and to end soon after
// the last:
//  - a block takes a run of strips (32 rows) times a slice of K. It stages the slice's activations once, in the order
//    of operand B, with their sums; from then on its warps run by themselves, each through an equal run of packed
//    blocks, along K and then along N;
//  - packed blocks come ahead as 16-byte loads into registers, one or two a warp;
//  - mma.m16n8k16 multiplies: the format's words are its operand A. Where the zero point is constant, the first product
//    of a group starts from -zero' S, which lies in shared memory as the accumulators' registers, so that zero points
//    cost nothing; zero points of groups (and groups that K does not fill) take a loop of their own;
//  - powers of two (of the casts) are taken back once, where a strip ends;
//  - a strip that several warps of a block share is added up by the one that begins it, in the order of K; slices are
//    added up in their order either within a cluster, whose blocks divide the strips among them (through each other's
//    shared memory), or by the warp that delivers a strip last (through the workspace).
//
// All that is the device's own is called by name (cuda/ptx), so that the kernel runs on a simulated device, too
// (test/native/simulator).
#pragma once
#include "cuda/gemm/activations.cuh"
#include "cuda/gemm/dequant_chunk.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/families/stream.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Packed blocks that a warp loads and multiplies as one, where K has whole such units: a KiB or more should be under
// way.
template <int B>
constexpr int kStreamUnit = B <= 2 ? 2 : 1;
template <int G>
struct StreamGroups {
  static constexpr int value = G;
};
// Loads go into a second set of registers at the start of a unit, all at once, right after those of the unit itself are
// there. The assembler has one scoreboard for all loads of a loop, and waiting for it waits for all that are under way:
// a load that goes out late in one unit would be waited for at the start of the next. From 5 bits on there is one set
// of registers (a second would spill), and words are replaced as soon as they are cast.
template <int B>
constexpr bool kStreamAhead = B <= 4;

// `Lean`: only for products of stream_simple() whose packed blocks have one group each. A kernel of its own, since what
// is small starts sooner and keeps its registers.
// `Split`: activations and outputs are f16, what is multiplied bf16 (BF), the activations as two parts one after the
// other: floats with more exponents than f16 has. Their second parts lie as T more tiles.
template <int B, int T, int W, bool Lean, bool BF, class Cast, bool Split = false>
__device__ __forceinline__ void gemm_stream(const GemmPackedArgs& g, const StreamArgs& a) {
  unsigned char* const shared = dynamic_shared();
  constexpr int P = kStreamUnit<B>;
  constexpr bool Ahead = kStreamAhead<B>, XB = BF && !Split;
  constexpr int TX = Split ? 2 * T : T;  // tiles of activations
  static_assert(!Split || (BF && !Cast::kSums));
  constexpr bool Far = ChunkCast<Cast>::kFarPairs;
  constexpr int D = Ahead ? 2 : 1;  // sets of registers
  // Rows r and r + 2 of the first product's start differ only if their gains do.
  constexpr int Q = Cast::kStarts;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int slice = static_cast<int>(blockIdx.x) % a.slices, set = static_cast<int>(blockIdx.x) / a.slices;
  // The common case: units of P packed blocks whose groups are whole, and one zero point for all.
  const bool simple = Lean || (g.groups_per_block > 1 && stream_simple(g, P));
  const int groups_per_block = Lean ? 1 : g.groups_per_block;
  const int unit = simple ? P : 1;
  const int k_first = stream_first(g.k_blocks / unit, slice, a.slices) * unit,
            kbs = stream_first(g.k_blocks / unit, slice + 1, a.slices) * unit - k_first;
  const int strip_first = stream_first(g.n_blocks, set, a.sets),
            strips = stream_first(g.n_blocks, set + 1, a.sets) - strip_first;
  const StreamShared places =
      stream_shared(T, TX, W, a.k_most, groups_per_block, a.strips_most, a.workspace ? 0 : a.slices);
  float4* const heads = reinterpret_cast<float4*>(shared + places.heads) + lane;
  float4* const parts = reinterpret_cast<float4*>(shared + places.parts) + lane;
  const uint32_t activations = shared_address(shared), starts = activations + places.starts;

  const int units = strips * kbs / unit;
  const auto run_first = [&](int w) { return stream_first(units, w, W) * unit; };
  const int first = run_first(warp), last = run_first(warp + 1);
  const int front = first / kbs;
  const uint64_t policy = createpolicy_evict_first();

  // What is loaded next: blocks to come of the run, and of the slice's part of the strip.
  int ahead = last - first, ahead_k = first - front * kbs;
  const unsigned char* ahead_words =
      g.weights + (static_cast<long long>(strip_first + front) * g.k_blocks + k_first + ahead_k) * (512 * B) +
      lane * 16;
  long long ahead_groups = static_cast<long long>(strip_first + front) * g.groups;  // row of scales
  const int starts_step = groups_per_block * kStartBytes * T;  // from one packed block along K to the next
  const int own_group = lane & 3 & (groups_per_block - 1), last_group = g.groups - 1;
  const long long words_jump = static_cast<long long>(g.k_blocks - kbs) * (512 * B);

  uint32_t q[D][P][4 * B];
  uint2 scale_ring[D][P], zeros = make_uint2(0, 0);
#pragma unroll
  for (int d = 0; d < D; ++d)
#pragma unroll
    for (int p = 0; p < P; ++p) {
      scale_ring[d][p] = make_uint2(0, 0);
#pragma unroll
      for (int w = 0; w < 4 * B; ++w) q[d][p][w] = 0;
    }
  // Scales and zero points: lane (g, t) takes its rows' of group t of the block, so one load serves up to four groups.
  const auto load_side = [&](uint2& scales) {
    const int group = g.channel ? 0 : min((k_first + ahead_k) * groups_per_block + own_group, last_group);
    const long long at = (ahead_groups + group) * 32 + (lane >> 2) * 4;
    ld_global_nc_v2_if(scales, g.scales + at, true);
    if constexpr (Lean) return;
    if (g.zero_kind == 1) zeros.x = ld_global_nc(g.zeros + at);
    else if (g.zero_kind == 2) ld_global_nc_v2_if(zeros, g.zeros + at * 2, true);
  };
  const auto step_ahead = [&] {
    --ahead;
    ahead_words += 512 * B;
    if (++ahead_k == kbs) ahead_k = 0, ahead_words += words_jump, ahead_groups += g.groups;
  };
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (p < unit && ahead > 0) {
#pragma unroll
      for (int v = 0; v < B; ++v) ld_global_nc_v4_if(q[0][p] + 4 * v, ahead_words + v * 512, policy, true);
      load_side(scale_ring[0][p]);
      step_ahead();
    }
  // What comes next, up to 8 KiB, goes to L2 while activations are waited for and staged: memory should not idle.
  if (lane == 0 && ahead > 0) bulk_prefetch_l2(ahead_words, min(min(ahead, kbs - ahead_k) * (512 * B), 8192));
  __syncwarp();
  const bool cluster = a.slices > 1 && !a.workspace;
  if (cluster) cluster_arrive_relaxed();
  // Weights, scales and zero points do not come from the operation before; all else may.
  if (a.overlap) griddepcontrol_wait_and_launch();

  const ChunkCast<Cast> cast(g.is_signed != 0, g.exponent);
  float constant[4];  // minus what is subtracted for each unit of S, where there are no zero points of groups
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    constant[r] = 0;
    if constexpr (Cast::kSums) constant[r] = -fmaf(g.zero, Cast::gain(r), Cast::bias());
  }
  // Activations: a warp takes 128 k of eight tokens at once, two such at a time; a lane eight k of one token in each
  // chunk of 32, so that four lanes read whole sectors.
  for (int pair = warp; pair < kbs * T; pair += 2 * W) {
    const int token = lane >> 2, j = lane & 3;
    uint4 x[2][4];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int item = pair + u * W, row = item % T * 8 + token, column = (k_first + item / T) * kBlockK + 8 * j;
      const uint16_t* from = g.x + static_cast<long long>(row) * g.k + column;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[u][c] = make_uint4(0, 0, 0, 0);
        if (item < kbs * T && row < g.m && column + 32 * c < g.k)
          x[u][c] = *reinterpret_cast<const uint4*>(from + 32 * c);
      }
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int item = pair + u * W, kb = item / T, tile = item % T, row = tile * 8 + token;
      if (item >= kbs * T) break;
      float eight[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint32_t words[4] = {x[u][c].x, x[u][c].y, x[u][c].z, x[u][c].w};
        float two[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          uint32_t word = words[t];
          if constexpr (Far && !Split) word = fma_bf16x2(word, kFar, twice(0x8000));
          if constexpr (Split)
            split_pair<true>(words[t], word,
                             *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, T + tile, TX, token, j, t)));
          *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, tile, TX, token, j, t)) = word;
          if constexpr (!Cast::kSums) continue;
          two[t] = BF ? __uint_as_float(words[t] << 16) + __uint_as_float(words[t] & 0xffff0000u)
                      : __low2float(*reinterpret_cast<const __half2*>(&words[t])) +
                            __high2float(*reinterpret_cast<const __half2*>(&words[t]));
        }
        eight[c] = (two[0] + two[1]) + (two[2] + two[3]);
      }
      if constexpr (Cast::kSums) {
        float* const sums = reinterpret_cast<float*>(shared + places.starts + kb * starts_step);
        const auto over_lanes = [&](float s) {
          s += __shfl_xor_sync(0xffffffffu, s, 1);
          return s + __shfl_xor_sync(0xffffffffu, s, 2);
        };
        if (groups_per_block <= 2) eight[0] += eight[1], eight[1] = eight[2] + eight[3];
        if (groups_per_block == 1) eight[0] += eight[1];
#pragma unroll
        for (int group = 0; group < 4; ++group)
          if (group < groups_per_block) {
            const float s = over_lanes(eight[group]);
            if (!simple) {
              if (j == 0) sums[group * 8 * T + row] = s;
            } else if (j < Q) {
              const int at = group * (16 * T * Q) + stream_start(tile, j, token, Q) / 4;
              sums[at] = (Q == 2 && j == 1 ? constant[2] : constant[0]) * s;
              sums[at + 2] = (Q == 2 && j == 1 ? constant[3] : constant[1]) * s;
            }
          }
      }
    }
  }
  if (cluster) cluster_wait();
  __syncthreads();

  float sum[2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;
  };
  const auto vector = [&](int v) {
    return make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]);
  };
  // What the casts multiplied by is taken back: powers of two, exact.
  const auto finished = [&](int v) {
    const float4 f = vector(v);
    const int r = v / T * 2;
    float low, high;
    if constexpr (Cast::kSums) low = Cast::ungain(r), high = Cast::ungain(r + 1);
    else low = high = cast.unpower;
    return make_float4(f.x * low, f.y * low, f.z * high, f.w * high);
  };

  // The slice's part of strip `strip` of the block is in `sum`. Slices of a cluster are powers of two.
  const int slice_bits = 31 - __clz(a.slices);
  const auto deliver = [&](int strip) {
    if (!a.workspace) {
      const uint32_t here = shared_address(parts + (((strip >> slice_bits) << slice_bits) + slice) * (2 * T * 32));
      const uint32_t there = mapa_shared(here, strip & (a.slices - 1));
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) st_shared_cluster_v4(there + v * 512, finished(v));
    } else {
      const int row = strip_first + strip;
      float4* const base =
          reinterpret_cast<float4*>(g.partial) + static_cast<long long>(row) * a.slices * (2 * T * 32) + lane;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) __stcg(base + (slice * 2 * T + v) * 32, finished(v));
      // One lane releases and acquires for the warp: what the others wrote happened before its atomic, what they read,
      // after.
      __syncwarp();
      unsigned before = 0;
      if (lane == 0) before = atom_inc_acq_rel(g.counters + row);
      before = __shfl_sync(0xffffffffu, before, 0);
      __syncwarp();
      if (before + 1 == static_cast<unsigned>(a.slices)) {
        if (lane == 0) g.counters[row] = 0;  // for the next launch
#pragma unroll 1
        for (int v = 0; v < 2 * T; ++v) {
          float4 all = __ldcg(base + v * 32);
#pragma unroll 4
          for (int s = 1; s < a.slices; ++s) {
            const float4 part = __ldcg(base + (s * 2 * T + v) * 32);
            all.x += part.x, all.y += part.y, all.z += part.z, all.w += part.w;
          }
          store_vector<T, XB>(g, row, 0, v, lane, all);
        }
      }
    }
  };

  clear();
  const uint32_t own_slot = activations + 16 * stream_slot(lane >> 2, lane & 3), own_start = starts + 16 * (lane & 3);
  // The block that is multiplied lies at `k` of strip `strip`, `left` blocks before the strip's part or the run ends.
  int strip = front, k = first - front * kbs, remaining = last - first;
  int segment = min(kbs - k, remaining), left = segment;
  bool began_inside = k != 0;
  uint32_t x_at = own_slot + k * (kSliceBytes * TX), start_at = (simple ? own_start : starts) + k * starts_step;
  const uint16_t* side_at = g.scales +
                            (ahead_groups + (g.channel ? 0 : (k_first + ahead_k) * groups_per_block + own_group)) * 32 +
                            (lane >> 2) * 4;
  const int side_step = g.channel ? 0 : 32 * groups_per_block;
  const long long side_jump = g.channel ? 32 : static_cast<long long>(g.groups - kbs * groups_per_block) * 32;

  const auto end_segment = [&] {
    k += segment, remaining -= segment;
    const bool strip_ends = k == kbs;
    if (began_inside) {
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) heads[(warp * 2 * T + v) * 32] = vector(v);
    } else if (strip_ends) {
      deliver(strip);
    }
    if (strip_ends) {
      clear();
      k = 0, ++strip, began_inside = false;
      x_at = own_slot, start_at = simple ? own_start : starts;
    }
    segment = left = min(kbs - k, remaining);
  };

  // A chunk of 32 k: its words as operand A for both halves of the strip, and the products with T tiles of activations.
  struct Fragments {
    uint32_t a[2][2][4];  // [step of 16 k][half]
  };
  const auto cast_chunk = [&](Fragments& f, const uint32_t* words) {
    uint32_t pairs[16];
    cast.pairs(words, pairs);
#pragma unroll
    for (int ks = 0; ks < 2; ++ks)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int i = 0; i < 4; ++i) f.a[ks][nt][i] = pairs[4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1)];
  };
  const auto load_chunk = [&](uint4(&b)[T], int c) {
#pragma unroll
    for (int t = 0; t < T; ++t) b[t] = ld_shared_v4(x_at + (c * TX + t) * 512);
  };
  const auto multiply_part = [&](float (&part)[2][T][4], const Fragments& f, const uint4(&b)[T]) {
#pragma unroll
    for (int ks = 0; ks < 2; ++ks)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int t = 0; t < T; ++t)
          mma_m16n8k16<BF>(part[nt][t], f.a[ks][nt], ks ? b[t].z : b[t].x, ks ? b[t].w : b[t].y);
  };
  const auto multiply_chunk = [&](float (&part)[2][T][4], const Fragments& f, uint4(&b)[T], int c) {
    multiply_part(part, f, b);
    if constexpr (Split) {
#pragma unroll
      for (int t = 0; t < T; ++t) b[t] = ld_shared_v4(x_at + (c * TX + T + t) * 512);
      multiply_part(part, f, b);
    }
  };
  // Words of the block D further take the places of those that are done with.
  const auto reload = [&](uint32_t* words, int c, bool more) {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (4 * v + 4 <= (c + 1) * B && 4 * v + 4 > c * B)
        ld_global_nc_v4_if(words + 4 * v, ahead_words + v * 512, policy, more);
  };
  const auto scales_of = [&](uint2 s, float (&scale)[4]) {
    const uint32_t pairs[2] = {s.x, s.y};
    if (g.scale_bf16) {
#pragma unroll
      for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), true);
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), false);
    }
  };

  // One packed block, the `p`-th of its unit, with G groups; `cast_is(c)` is told that the words of chunk c are cast.
  const auto simple_block = [&](auto groups, int p, const uint32_t* words, uint2 scales, const auto& cast_is) {
    constexpr int G = decltype(groups)::value;
    Fragments f[2];
    uint4 b[2][T];
    float part[2][T][4];
    const auto begin_group = [&](int group) {
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int nt = 0; nt < 2; ++nt) {
          uint4 v = make_uint4(0, 0, 0, 0);
          if constexpr (Cast::kSums)
            v = ld_shared_v4(start_at + p * (kStartBytes * T * G) + ((group * T + t) * Q + nt % Q) * 64);
          part[nt][t][0] = __uint_as_float(v.x), part[nt][t][1] = __uint_as_float(v.y),
          part[nt][t][2] = __uint_as_float(v.z), part[nt][t][3] = __uint_as_float(v.w);
        }
    };
    load_chunk(b[0], 4 * p);
    begin_group(0);
    cast_chunk(f[0], words);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      cast_is(c);
      if (c < 3) {
        load_chunk(b[(c + 1) & 1], 4 * p + c + 1);
        cast_chunk(f[(c + 1) & 1], words + (c + 1) * B);
      }
      multiply_chunk(part, f[c & 1], b[c & 1], 4 * p + c);
      if ((c + 1) * G % 4 == 0) {
        const int group = c * G / 4;
        uint2 own = scales;
        if constexpr (G > 1)
          own.x = __shfl_sync(0xffffffffu, own.x, (lane & 28) + group),
          own.y = __shfl_sync(0xffffffffu, own.y, (lane & 28) + group);
        float scale[4];
        scales_of(own, scale);
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[nt][t][i] = fmaf(scale[2 * nt + (i >> 1)], part[nt][t][i], sum[nt][t][i]);
        if (c < 3) begin_group(group + 1);
      }
    }
  };
  // One unit: words and scales of set `from`, the next unit's into set `to`. What changes seldom is left to event().
  bool more = ahead > 0;
  const uint32_t never = static_cast<uint32_t>(a.overlap) >> 8;  // 0, which the compiler does not know
  const auto simple_unit = [&](auto groups, int from, int to) {
    constexpr int G = decltype(groups)::value;
    if constexpr (Ahead) {
      // Not before the words of this unit are there.
      const bool wanted = (static_cast<uint32_t>(more) | (q[from][P - 1][4 * B - 1] & never)) != 0;
#pragma unroll
      for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int v = 0; v < B; ++v)
          ld_global_nc_v4_if(q[to][p] + 4 * v, ahead_words + (p * B + v) * 512, policy, wanted);
        ld_global_nc_v2_if(scale_ring[to][p], side_at + p * side_step, wanted);
      }
#pragma unroll
      for (int p = 0; p < P; ++p) simple_block(groups, p, q[from][p], scale_ring[from][p], [](int) {});
    } else {
      simple_block(groups, 0, q[0][0], scale_ring[0][0], [&](int c) { reload(q[0][0], c, more); });
      ld_global_nc_v2_if(scale_ring[0][0], side_at, more);
    }
    ahead_words += P * 512 * B, side_at += P * side_step;
    x_at += P * kSliceBytes * TX, start_at += P * kStartBytes * T * G;
  };
  const auto general_block = [&](uint32_t* words, uint2& scales) {
    const bool more = ahead > 0;
    Fragments f;
    uint4 b[T];
    float part[2][T][4];
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[nt][t][i] = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      load_chunk(b, c);
      cast_chunk(f, words + c * B);
      multiply_chunk(part, f, b, c);
      reload(words, c, more);
      if (c == 3 || groups_per_block == 4 || (c == 1 && groups_per_block == 2)) {
        const int group = groups_per_block == 4 ? c : groups_per_block == 2 ? c >> 1 : 0;
        uint2 s = scales, z = zeros;
        if (groups_per_block > 1) {
          s.x = __shfl_sync(0xffffffffu, s.x, (lane & 28) + group),
          s.y = __shfl_sync(0xffffffffu, s.y, (lane & 28) + group);
          if (g.zero_kind)
            z.x = __shfl_sync(0xffffffffu, z.x, (lane & 28) + group),
            z.y = __shfl_sync(0xffffffffu, z.y, (lane & 28) + group);
        }
        float scale[4], zero[4];
        scales_of(s, scale);
#pragma unroll
        for (int r = 0; r < 4; ++r) zero[r] = constant[r];
        if constexpr (Cast::kSums) {
          if (g.zero_kind) {
            const uint32_t halves[2] = {z.x, z.y};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const float own = g.zero_kind == 1
                                    ? static_cast<float>((z.x >> 8 * r) & 255)
                                    : to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
              zero[r] = -fmaf(g.zero + own, Cast::gain(r), Cast::bias());
            }
          }
        }
        add_group<T, Cast::kSums>(sum, part, scale, zero,
                                  reinterpret_cast<const float*>(shared + (start_at - activations)) + group * 8 * T,
                                  lane);
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) part[nt][t][i] = 0;
      }
    }
    if (more) {
      load_side(scales);
      step_ahead();
    }
    x_at += kSliceBytes * TX, start_at += starts_step;
  };
  // Packed blocks until the segment ends, or the slice's part of the strip from which is loaded, or what is to be
  // loaded. That is one piece of code whatever slot comes next: what runs over and over should be small.
  int slot = 0, part_left = kbs - ahead_k, until = 0;
  const auto next_event = [&] { until = ahead > 0 ? min(left, min(ahead, part_left)) : left; };
  const auto event = [&](int steps) {
    left -= steps, ahead -= steps, part_left -= steps;
    if (part_left == 0) part_left = kbs, ahead_words += words_jump, side_at += side_jump;
    more = ahead > 0;
  };
  while (remaining > 0) {
    if (simple) {
      next_event();
      const int steps = until;
      const auto run = [&](auto groups) {
        for (;;) {
          if (slot == 0) {
            simple_unit(groups, 0, D - 1);
            slot = D - 1;
            if ((until -= P) == 0) break;
          }
          if constexpr (D > 1)
            if (slot == 1) {
              simple_unit(groups, 1, 0);
              slot = 0;
              if ((until -= P) == 0) break;
            }
        }
      };
      if constexpr (Lean) run(StreamGroups<1>{});
      else if (groups_per_block == 2) run(StreamGroups<2>{});
      else run(StreamGroups<4>{});
      event(steps);
      if (left != 0) continue;
    } else if constexpr (!Lean) {
      do general_block(q[0][0], scale_ring[0][0]);
      while (--left != 0);
    }
    end_segment();
  }

  __syncthreads();
  // The strip that this warp began and did not end: those after it hold the rest.
  if (first < last && !began_inside && k != 0) {
    const int end = (strip + 1) * kbs;
    for (int w = warp + 1; w < W; ++w) {
      const int from = run_first(w);
      if (from >= end) break;
      if (run_first(w + 1) == from) continue;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) {
        const float4 other = heads[(w * 2 * T + v) * 32];
        sum[v / T][v % T][0] += other.x, sum[v / T][v % T][1] += other.y, sum[v / T][v % T][2] += other.z,
            sum[v / T][v % T][3] += other.w;
      }
    }
    deliver(strip);
  }
  if (a.workspace) return;
  if (cluster) {
    __syncwarp();
    cluster_sync();
  } else {
    __syncthreads();
  }
  // Vectors of the strips slice, slice + slices, ...
  const int mine = (strips - slice + a.slices - 1) >> slice_bits;
  for (int i = warp; i < mine * 2 * T; i += W) {
    const int at = i / (2 * T), v = i % (2 * T);
    const float4* from = parts + (at << slice_bits) * (2 * T * 32) + v * 32;
    float4 all = from[0];
    for (int s = 1; s < a.slices; ++s) {
      const float4 part4 = from[s * 2 * T * 32];
      all.x += part4.x, all.y += part4.y, all.z += part4.z, all.w += part4.w;
    }
    store_vector<T, XB>(g, strip_first + (at << slice_bits) + slice, 0, v, lane, all);
  }
}

#endif

}  // namespace lpq::cuda
