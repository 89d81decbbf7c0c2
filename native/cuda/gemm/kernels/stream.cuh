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
#include "cuda/gemm/packed_words.cuh"
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
// Loads go into a second set of registers at the start of a unit, all at once, right after those of the unit itself are
// there. The assembler has one scoreboard for all loads of a loop, and waiting for it waits for all that are under way:
// a load that goes out late in one unit would be waited for at the start of the next. From 5 bits on there is one set
// of registers (a second would spill), and words are replaced as soon as they are cast.
template <int B>
constexpr bool kStreamAhead = B <= 4;

// What a block does: strips of one packed block of rows times a slice of K, whose packed blocks its warps share in
// equal runs, along K and then along N. Lean: one group a packed block, none of it in need of the loop for all.
template <int B, int T, int TX, int W, bool Lean>
struct StreamWork {
  int slice, k_first, kbs, strip_first, strips;
  // The common case: units of kStreamUnit packed blocks whose groups are whole, and one zero point for all.
  bool simple;
  int groups_per_block, unit, units;
  StreamShared places;

  __device__ __forceinline__ StreamWork(const GemmPackedArgs& g, const StreamArgs& a) {
    constexpr int P = kStreamUnit<B>;
    slice = static_cast<int>(blockIdx.x) % a.slices;
    const int set = static_cast<int>(blockIdx.x) / a.slices;
    simple = Lean || (g.groups_per_block > 1 && stream_simple(g, P));
    groups_per_block = Lean ? 1 : g.groups_per_block, unit = simple ? P : 1;
    k_first = stream_first(g.k_blocks / unit, slice, a.slices) * unit;
    kbs = stream_first(g.k_blocks / unit, slice + 1, a.slices) * unit - k_first;
    strip_first = stream_first(g.n_blocks, set, a.sets);
    strips = stream_first(g.n_blocks, set + 1, a.sets) - strip_first;
    places = stream_shared(T, TX, W, a.k_most, groups_per_block, a.strips_most, a.workspace ? 0 : a.slices);
    units = strips * kbs / unit;
  }
  // First packed block of warp w's run.
  __device__ __forceinline__ int run_first(int w) const { return stream_first(units, w, W) * unit; }
  __device__ __forceinline__ int starts_step() const { return groups_per_block * kStartBytes * T; }
};

// What is loaded next of a warp's run, and the registers that it comes to.
template <int B, bool Lean, class Work>
struct StreamLoads {
  static constexpr int P = kStreamUnit<B>, D = kStreamAhead<B> ? 2 : 1;  // sets of registers
  const GemmPackedArgs& g;
  const Work& work;
  const uint64_t policy;
  const int lane;
  int ahead, ahead_k;                // blocks to come of the run, and of the slice's part of the strip
  const unsigned char* ahead_words;  // this lane's of the next
  long long ahead_groups;            // row of scales
  uint32_t q[D][P][4 * B];
  uint2 scale_ring[D][P], zeros = make_uint2(0, 0);

  __device__ __forceinline__ StreamLoads(const GemmPackedArgs& g_, const Work& work_, int first, int last, int lane_)
      : g(g_), work(work_), policy(createpolicy_evict_first()), lane(lane_), ahead(last - first) {
    const int front = first / work.kbs;
    ahead_k = first - front * work.kbs;
    ahead_words = g.weights +
                  (static_cast<long long>(work.strip_first + front) * g.k_blocks + work.k_first + ahead_k) * (512 * B) +
                  lane * 16;
    ahead_groups = static_cast<long long>(work.strip_first + front) * g.groups;
#pragma unroll
    for (int d = 0; d < D; ++d)
#pragma unroll
      for (int p = 0; p < P; ++p) {
        scale_ring[d][p] = make_uint2(0, 0);
#pragma unroll
        for (int w = 0; w < 4 * B; ++w) q[d][p][w] = 0;
      }
  }
  // From the end of the slice's part of a strip to the next.
  __device__ __forceinline__ long long words_jump() const {
    return static_cast<long long>(g.k_blocks - work.kbs) * (512 * B);
  }
  __device__ __forceinline__ int own_group() const { return lane & 3 & (work.groups_per_block - 1); }
  // Scales and zero points: lane (g, t) takes its rows' of group t of the block, so one load serves up to four groups.
  __device__ __forceinline__ void load_side(uint2& scales) {
    const int group = g.channel ? 0 : min((work.k_first + ahead_k) * work.groups_per_block + own_group(), g.groups - 1);
    const long long at = (ahead_groups + group) * 32 + (lane >> 2) * 4;
    ld_global_nc_v2_if(scales, g.scales + at, true);
    if constexpr (Lean) return;
    if (g.zero_kind == 1) zeros.x = ld_global_nc(g.zeros + at);
    else if (g.zero_kind == 2) ld_global_nc_v2_if(zeros, g.zeros + at * 2, true);
  }
  __device__ __forceinline__ void step_ahead() {
    --ahead;
    ahead_words += 512 * B;
    if (++ahead_k == work.kbs) ahead_k = 0, ahead_words += words_jump(), ahead_groups += g.groups;
  }
  __device__ __forceinline__ void load_first_unit() {
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (p < work.unit && ahead > 0) {
#pragma unroll
        for (int v = 0; v < B; ++v) ld_global_nc_v4_if(q[0][p] + 4 * v, ahead_words + v * 512, policy, true);
        load_side(scale_ring[0][p]);
        step_ahead();
      }
    // What comes next, up to 8 KiB, goes to L2 while activations are waited for and staged: memory should not idle.
    if (lane == 0 && ahead > 0) bulk_prefetch_l2(ahead_words, min(min(ahead, work.kbs - ahead_k) * (512 * B), 8192));
  }
  // Words of the block D further take the places of those of chunk c, which are done with.
  __device__ __forceinline__ void reload(uint32_t* words, int c, bool more) const {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (4 * v + 4 <= (c + 1) * B && 4 * v + 4 > c * B)
        ld_global_nc_v4_if(words + 4 * v, ahead_words + v * 512, policy, more);
  }
};

// The slice's activations to shared memory in the order of operand B, with their sums or what products start from. A
// warp takes 128 k of eight tokens at once, two such at a time; a lane eight k of one token in each chunk of 32, so
// that four lanes read whole sectors. constant: minus what is subtracted for each unit of S, of row class r.
template <int T, int TX, int W, bool BF, class Cast, bool Split, class Work>
struct StreamActivations {
  static constexpr int Q = Cast::kStarts;
  const GemmPackedArgs& g;
  const Work& work;
  unsigned char* const shared;
  const int lane;
  float constant[4];

  __device__ __forceinline__ StreamActivations(const GemmPackedArgs& g_, const Work& work_, unsigned char* shared_,
                                               int lane_)
      : g(g_), work(work_), shared(shared_), lane(lane_) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      constant[r] = 0;
      if constexpr (Cast::kSums) constant[r] = -fmaf(g.zero, Cast::gain(r), Cast::bias());
    }
  }
  __device__ __forceinline__ void stage(int warp) const {
    for (int pair = warp; pair < work.kbs * T; pair += 2 * W) {
      const int token = lane >> 2, j = lane & 3;
      uint4 x[2][4];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int item = pair + u * W, row = item % T * 8 + token, column = (work.k_first + item / T) * kBlockK + 8 * j;
        const uint16_t* from = g.x + static_cast<long long>(row) * g.k + column;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[u][c] = make_uint4(0, 0, 0, 0);
          if (item < work.kbs * T && row < g.m && column + 32 * c < g.k)
            x[u][c] = *reinterpret_cast<const uint4*>(from + 32 * c);
        }
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int item = pair + u * W;
        if (item >= work.kbs * T) break;
        store(x[u], item / T, item % T, token, j);
      }
    }
  }

 private:
  __device__ __forceinline__ void store(const uint4 (&x)[4], int kb, int tile, int token, int j) const {
    float eight[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t words[4] = {x[c].x, x[c].y, x[c].z, x[c].w};
      float two[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t word = words[t];
        if constexpr (ChunkCast<Cast>::kFarPairs && !Split) word = fma_bf16x2(word, kFar, twice(0x8000));
        if constexpr (Split)
          split_pair<true>(words[t], word,
                           *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, T + tile, TX, token, j, t)));
        *reinterpret_cast<uint32_t*>(shared + stream_pair(kb, c, tile, TX, token, j, t)) = word;
        if constexpr (Cast::kSums) two[t] = sum_of_pair<BF>(words[t]);
      }
      if constexpr (Cast::kSums) eight[c] = (two[0] + two[1]) + (two[2] + two[3]);
    }
    if constexpr (Cast::kSums) store_sums(eight, kb, tile, token, j);
  }
  __device__ __forceinline__ void store_sums(float (&eight)[4], int kb, int tile, int token, int j) const {
    float* const sums = reinterpret_cast<float*>(shared + work.places.starts + kb * work.starts_step());
    const auto over_lanes = [&](float s) {
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      return s + __shfl_xor_sync(0xffffffffu, s, 2);
    };
    if (work.groups_per_block <= 2) eight[0] += eight[1], eight[1] = eight[2] + eight[3];
    if (work.groups_per_block == 1) eight[0] += eight[1];
#pragma unroll
    for (int group = 0; group < 4; ++group)
      if (group < work.groups_per_block) {
        const float s = over_lanes(eight[group]);
        if (!work.simple) {
          if (j == 0) sums[group * 8 * T + tile * 8 + token] = s;
        } else if (j < Q) {
          const int at = group * (16 * T * Q) + stream_start(tile, j, token, Q) / 4;
          sums[at] = (Q == 2 && j == 1 ? constant[2] : constant[0]) * s;
          sums[at + 2] = (Q == 2 && j == 1 ? constant[3] : constant[1]) * s;
        }
      }
  }
};

// A warp's sums of a strip, and where they go.
template <int T, int W, bool XB, class Cast, class Work>
struct StreamSums {
  const GemmPackedArgs& g;
  const StreamArgs& a;
  const Work& work;
  const Cast& cast;
  float4 *const heads, *const parts;  // in shared memory: what warps hand to those before them; slices of strips
  const int slice_bits, lane, warp;
  float sum[2][T][4];

  // What the casts multiplied by is taken back: powers of two, exact.
  __device__ __forceinline__ float4 finished(int v) const {
    const float4 f = sum_vector(sum, v);
    const int r = v / T * 2;
    float low, high;
    if constexpr (Cast::kSums) low = Cast::ungain(r), high = Cast::ungain(r + 1);
    else low = high = cast.unpower;
    return make_float4(f.x * low, f.y * low, f.z * high, f.w * high);
  }
  // The strip began in another warp's run, which adds this up.
  __device__ __forceinline__ void hand_over() const {
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) heads[(warp * 2 * T + v) * 32] = sum_vector(sum, v);
  }
  // The strip that this warp began and did not end: those after it hold the rest, up to packed block `end` of the
  // block's.
  __device__ __forceinline__ void take_over(int end) {
    for (int w = warp + 1; w < W; ++w) {
      const int from = work.run_first(w);
      if (from >= end) break;
      if (work.run_first(w + 1) == from) continue;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) add_vector(sum, v, heads[(w * 2 * T + v) * 32]);
    }
  }
  // The slice's part of strip `strip` of the block is in `sum`. Slices of a cluster are powers of two.
  __device__ __forceinline__ void deliver(int strip) const {
    if (!a.workspace) {
      const uint32_t here = shared_address(parts + (((strip >> slice_bits) << slice_bits) + work.slice) * (2 * T * 32));
      const uint32_t there = mapa_shared(here, strip & (a.slices - 1));
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) st_shared_cluster_v4(there + v * 512, finished(v));
    } else {
      deliver_by_workspace(work.strip_first + strip);
    }
  }
  // Slices of a cluster: vectors of the strips slice, slice + slices, ... of the block.
  __device__ __forceinline__ void add_up_slices() const {
    const int mine = (work.strips - work.slice + a.slices - 1) >> slice_bits;
    for (int i = warp; i < mine * 2 * T; i += W) {
      const int at = i / (2 * T), v = i % (2 * T);
      const float4* from = parts + (at << slice_bits) * (2 * T * 32) + v * 32;
      float4 all = from[0];
      for (int s = 1; s < a.slices; ++s) add(all, from[s * 2 * T * 32]);
      store_vector<T, XB>(g, work.strip_first + (at << slice_bits) + work.slice, 0, v, lane, all);
    }
  }

 private:
  __device__ __forceinline__ void deliver_by_workspace(int row) const {
    float4* const base =
        reinterpret_cast<float4*>(g.partial) + static_cast<long long>(row) * a.slices * (2 * T * 32) + lane;
#pragma unroll
    for (int v = 0; v < 2 * T; ++v) __stcg(base + (work.slice * 2 * T + v) * 32, finished(v));
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
        for (int s = 1; s < a.slices; ++s) add(all, __ldcg(base + (s * 2 * T + v) * 32));
        store_vector<T, XB>(g, row, 0, v, lane, all);
      }
    }
  }
};

// A chunk of 32 k as operand A, [step of 16 k][half of the strip's rows]: (lane, reg) -> (n = 16 half + lane / 4 + 8
// (reg % 2), k = 16 step + 2 (lane % 4) + 8 (reg / 2) and the next).
struct StreamFragments {
  uint32_t a[2][2][4];
};
template <class Cast>
__device__ __forceinline__ void cast_chunk(const ChunkCast<Cast>& cast, StreamFragments& f, const uint32_t* words) {
  uint32_t pairs[16];
  cast.pairs(words, pairs);
#pragma unroll
  for (int ks = 0; ks < 2; ++ks)
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int i = 0; i < 4; ++i) f.a[ks][nt][i] = pairs[PackedChunk::pair(ks, nt, i)];
}
__device__ __forceinline__ void scales_of(uint2 s, bool bf16, float (&scale)[4]) {
  const uint32_t pairs[2] = {s.x, s.y};
  if (bf16) {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), true);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), false);
  }
}

// A warp's way through its run. The block that is multiplied lies at `k` of strip `strip`, `left` blocks before the
// strip's part or the run ends.
template <int B, int T, bool Lean, bool BF, class Cast, bool Split, class Work, class Loads, class Sums>
struct StreamRun {
  static constexpr int P = Loads::P, D = Loads::D, TX = Split ? 2 * T : T;
  // Rows r and r + 2 of the first product's start differ only if their gains do.
  static constexpr int Q = Cast::kStarts;
  const GemmPackedArgs& g;
  const Work& work;
  Loads& loads;
  Sums& sums;
  const ChunkCast<Cast>& cast;
  const float (&constant)[4];
  const unsigned char* const shared;
  const int lane;
  const uint32_t never;  // 0, which the compiler does not know
  const uint32_t own_slot, first_start;
  int strip, k, remaining, segment, left;
  bool began_inside;
  uint32_t x_at, start_at;
  const uint16_t* side_at;  // scales of the next unit
  int side_step;
  long long side_jump;
  int slot = 0, part_left, until = 0;
  bool more;

  __device__ __forceinline__ StreamRun(const GemmPackedArgs& g_, const StreamArgs& a, const Work& work_, Loads& loads_,
                                       Sums& sums_, const ChunkCast<Cast>& cast_, const float (&constant_)[4],
                                       const unsigned char* shared_, int lane_, int first, int last)
      : g(g_),
        work(work_),
        loads(loads_),
        sums(sums_),
        cast(cast_),
        constant(constant_),
        shared(shared_),
        lane(lane_),
        never(static_cast<uint32_t>(a.overlap) >> 8),
        own_slot(shared_address(shared_) + 16 * stream_slot(lane >> 2, lane & 3)),
        first_start(shared_address(shared_) + work_.places.starts + (work_.simple ? 16 * (lane & 3) : 0)),
        strip(first / work_.kbs) {
    k = first - strip * work.kbs, remaining = last - first;
    segment = left = min(work.kbs - k, remaining);
    began_inside = k != 0;
    x_at = own_slot + k * (kSliceBytes * TX), start_at = first_start + k * work.starts_step();
    const int groups = work.groups_per_block;
    side_at =
        g.scales +
        (loads.ahead_groups + (g.channel ? 0 : (work.k_first + loads.ahead_k) * groups + loads.own_group())) * 32 +
        (lane >> 2) * 4;
    side_step = g.channel ? 0 : 32 * groups;
    side_jump = g.channel ? 32 : static_cast<long long>(g.groups - work.kbs * groups) * 32;
    part_left = work.kbs - loads.ahead_k;
    more = loads.ahead > 0;
  }

  __device__ __forceinline__ void multiply() {
    while (remaining > 0) {
      if (work.simple) {
        // Until the segment ends, or the slice's part of the strip from which is loaded, or what is to be loaded: one
        // piece of code whatever slot comes next, since what runs over and over should be small.
        until = loads.ahead > 0 ? min(left, min(loads.ahead, part_left)) : left;
        const int steps = until;
        if constexpr (Lean) run_units<1>();
        else if (work.groups_per_block == 2) run_units<2>();
        else run_units<4>();
        left -= steps, loads.ahead -= steps, part_left -= steps;
        if (part_left == 0) part_left = work.kbs, loads.ahead_words += loads.words_jump(), side_at += side_jump;
        more = loads.ahead > 0;
        if (left != 0) continue;
      } else if constexpr (!Lean) {
        do general_block(loads.q[0][0], loads.scale_ring[0][0]);
        while (--left != 0);
      }
      end_segment();
    }
  }

 private:
  __device__ __forceinline__ void end_segment() {
    k += segment, remaining -= segment;
    const bool strip_ends = k == work.kbs;
    if (began_inside) sums.hand_over();
    else if (strip_ends) sums.deliver(strip);
    if (strip_ends) {
      clear_sums(sums.sum);
      k = 0, ++strip, began_inside = false;
      x_at = own_slot, start_at = first_start;
    }
    segment = left = min(work.kbs - k, remaining);
  }
  __device__ __forceinline__ void load_tokens(uint4 (&b)[T], int c) const {
#pragma unroll
    for (int t = 0; t < T; ++t) b[t] = ld_shared_v4(x_at + (c * TX + t) * 512);
  }
  __device__ __forceinline__ static void multiply_part(float (&part)[2][T][4], const StreamFragments& f,
                                                       const uint4 (&b)[T]) {
#pragma unroll
    for (int ks = 0; ks < 2; ++ks)
#pragma unroll
      for (int nt = 0; nt < 2; ++nt)
#pragma unroll
        for (int t = 0; t < T; ++t)
          mma_m16n8k16<BF>(part[nt][t], f.a[ks][nt], ks ? b[t].z : b[t].x, ks ? b[t].w : b[t].y);
  }
  __device__ __forceinline__ void multiply_chunk(float (&part)[2][T][4], const StreamFragments& f, uint4 (&b)[T],
                                                 int c) const {
    multiply_part(part, f, b);
    if constexpr (Split) {
#pragma unroll
      for (int t = 0; t < T; ++t) b[t] = ld_shared_v4(x_at + (c * TX + T + t) * 512);
      multiply_part(part, f, b);
    }
  }
  template <int G>
  __device__ __forceinline__ void begin_group(float (&part)[2][T][4], int p, int group) const {
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
  }
  // One packed block, the `p`-th of its unit, with G groups; `cast_is(c)` is told that the words of chunk c are cast.
  template <int G, class CastIs>
  __device__ __forceinline__ void simple_block(int p, const uint32_t* words, uint2 scales, const CastIs& cast_is) {
    StreamFragments f[2];
    uint4 b[2][T];
    float part[2][T][4];
    load_tokens(b[0], 4 * p);
    begin_group<G>(part, p, 0);
    cast_chunk(cast, f[0], words);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      cast_is(c);
      if (c < 3) {
        load_tokens(b[(c + 1) & 1], 4 * p + c + 1);
        cast_chunk(cast, f[(c + 1) & 1], words + (c + 1) * B);
      }
      multiply_chunk(part, f[c & 1], b[c & 1], 4 * p + c);
      if ((c + 1) * G % 4 == 0) {
        const int group = c * G / 4;
        uint2 own = scales;
        if constexpr (G > 1)
          own.x = __shfl_sync(0xffffffffu, own.x, (lane & 28) + group),
          own.y = __shfl_sync(0xffffffffu, own.y, (lane & 28) + group);
        float scale[4];
        scales_of(own, g.scale_bf16, scale);
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int t = 0; t < T; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              sums.sum[nt][t][i] = fmaf(scale[2 * nt + (i >> 1)], part[nt][t][i], sums.sum[nt][t][i]);
        if (c < 3) begin_group<G>(part, p, group + 1);
      }
    }
  }
  // One unit: words and scales of set `from`, the next unit's into set `to`. What changes seldom is left to multiply().
  template <int G, int From, int To>
  __device__ __forceinline__ void simple_unit() {
    auto& q = loads.q;
    if constexpr (kStreamAhead<B>) {
      // Not before the words of this unit are there.
      const bool wanted = (static_cast<uint32_t>(more) | (q[From][P - 1][4 * B - 1] & never)) != 0;
#pragma unroll
      for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int v = 0; v < B; ++v)
          ld_global_nc_v4_if(q[To][p] + 4 * v, loads.ahead_words + (p * B + v) * 512, loads.policy, wanted);
        ld_global_nc_v2_if(loads.scale_ring[To][p], side_at + p * side_step, wanted);
      }
#pragma unroll
      for (int p = 0; p < P; ++p) simple_block<G>(p, q[From][p], loads.scale_ring[From][p], [](int) {});
    } else {
      simple_block<G>(0, q[0][0], loads.scale_ring[0][0], [&](int c) { loads.reload(q[0][0], c, more); });
      ld_global_nc_v2_if(loads.scale_ring[0][0], side_at, more);
    }
    loads.ahead_words += P * 512 * B, side_at += P * side_step;
    x_at += P * kSliceBytes * TX, start_at += P * kStartBytes * T * G;
  }
  template <int G>
  __device__ __forceinline__ void run_units() {
    for (;;) {
      if (slot == 0) {
        simple_unit<G, 0, D - 1>();
        slot = D - 1;
        if ((until -= P) == 0) break;
      }
      if constexpr (D > 1)
        if (slot == 1) {
          simple_unit<G, 1, 0>();
          slot = 0;
          if ((until -= P) == 0) break;
        }
    }
  }
  // A packed block with any zero points, and with groups that K does not fill.
  __device__ __forceinline__ void general_block(uint32_t* words, uint2& scales) {
    const bool more = loads.ahead > 0;
    const int groups = work.groups_per_block;
    StreamFragments f;
    uint4 b[T];
    float part[2][T][4];
    clear_sums(part);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      load_tokens(b, c);
      cast_chunk(cast, f, words + c * B);
      multiply_chunk(part, f, b, c);
      loads.reload(words, c, more);
      if (c == 3 || groups == 4 || (c == 1 && groups == 2)) {
        add_general_group(part, scales, groups == 4 ? c : groups == 2 ? c >> 1 : 0);
        clear_sums(part);
      }
    }
    if (more) {
      loads.load_side(scales);
      loads.step_ahead();
    }
    x_at += kSliceBytes * TX, start_at += work.starts_step();
  }
  __device__ __forceinline__ void add_general_group(const float (&part)[2][T][4], uint2 s, int group) {
    uint2 z = loads.zeros;
    if (work.groups_per_block > 1) {
      s.x = __shfl_sync(0xffffffffu, s.x, (lane & 28) + group),
      s.y = __shfl_sync(0xffffffffu, s.y, (lane & 28) + group);
      if (g.zero_kind)
        z.x = __shfl_sync(0xffffffffu, z.x, (lane & 28) + group),
        z.y = __shfl_sync(0xffffffffu, z.y, (lane & 28) + group);
    }
    float scale[4], zero[4];
    scales_of(s, g.scale_bf16, scale);
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] = constant[r];
    if constexpr (Cast::kSums) {
      if (g.zero_kind) {
        const uint32_t halves[2] = {z.x, z.y};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float own = g.zero_kind == 1 ? static_cast<float>((z.x >> 8 * r) & 255)
                                             : to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
          zero[r] = -fmaf(g.zero + own, Cast::gain(r), Cast::bias());
        }
      }
    }
    add_group<T, Cast::kSums>(
        sums.sum, part, scale, zero,
        reinterpret_cast<const float*>(shared + (start_at - shared_address(shared))) + group * 8 * T, lane);
  }
};

// `Lean`: only for products of stream_simple() whose packed blocks have one group each. A kernel of its own, since what
// is small starts sooner and keeps its registers.
// `Split`: activations and outputs are f16, what is multiplied bf16 (BF), the activations as two parts one after the
// other: floats with more exponents than f16 has. Their second parts lie as T more tiles.
template <int B, int T, int W, bool Lean, bool BF, class Cast, bool Split = false>
__device__ __forceinline__ void gemm_stream(const GemmPackedArgs& g, const StreamArgs& a) {
  static_assert(!Split || (BF && !Cast::kSums));
  constexpr int TX = Split ? 2 * T : T;  // tiles of activations
  unsigned char* const shared = dynamic_shared();
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  using Work = StreamWork<B, T, TX, W, Lean>;
  using Loads = StreamLoads<B, Lean, Work>;
  using Sums = StreamSums<T, W, BF && !Split, ChunkCast<Cast>, Work>;
  const Work work(g, a);
  const int first = work.run_first(warp), last = work.run_first(warp + 1);

  Loads loads(g, work, first, last, lane);
  loads.load_first_unit();
  __syncwarp();
  const bool cluster = a.slices > 1 && !a.workspace;
  if (cluster) cluster_arrive_relaxed();
  // Weights, scales and zero points do not come from the operation before; all else may.
  if (a.overlap) griddepcontrol_wait_and_launch();

  const ChunkCast<Cast> cast(g.is_signed != 0, g.exponent);
  const StreamActivations<T, TX, W, BF, Cast, Split, Work> activations(g, work, shared, lane);
  activations.stage(warp);
  if (cluster) cluster_wait();
  __syncthreads();

  Sums sums{g,
            a,
            work,
            cast,
            reinterpret_cast<float4*>(shared + work.places.heads) + lane,
            reinterpret_cast<float4*>(shared + work.places.parts) + lane,
            31 - __clz(a.slices),
            lane,
            warp};
  clear_sums(sums.sum);
  StreamRun<B, T, Lean, BF, Cast, Split, Work, Loads, Sums> run(g, a, work, loads, sums, cast, activations.constant,
                                                                shared, lane, first, last);
  run.multiply();

  __syncthreads();
  if (first < last && !run.began_inside && run.k != 0) {
    sums.take_over((run.strip + 1) * work.kbs);
    sums.deliver(run.strip);
  }
  if (a.workspace) return;
  if (cluster) {
    __syncwarp();
    cluster_sync();
  } else {
    __syncthreads();
  }
  sums.add_up_slices();
}

#endif

}  // namespace lpq::cuda
