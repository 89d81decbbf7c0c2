// What a block of stream.cuh does, and what is loaded next of a warp's run: words and scales,
// to registers, and the words there as operand A.
#pragma once
#include "cuda/gemm/dequant_chunk.cuh"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/families/stream.h"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/global_memory.cuh"

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
    k_first = first_of_part(g.k_blocks / unit, slice, a.slices) * unit;
    kbs = first_of_part(g.k_blocks / unit, slice + 1, a.slices) * unit - k_first;
    strip_first = first_of_part(g.n_blocks, set, a.sets);
    strips = first_of_part(g.n_blocks, set + 1, a.sets) - strip_first;
    places = stream_shared(T, TX, W, a.k_most, groups_per_block, a.strips_most, a.workspace ? 0 : a.slices);
    units = strips * kbs / unit;
  }
  // First packed block of warp w's run.
  __device__ __forceinline__ int run_first(int w) const { return first_of_part(units, w, W) * unit; }
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
    // What comes next, up to 16 KiB, goes to L2 while activations are waited for and staged: memory should not idle.
    if (lane == 0 && ahead > 0) bulk_prefetch_l2(ahead_words, min(min(ahead, work.kbs - ahead_k) * (512 * B), 16384));
  }
  // Words of the block D further take the places of those of chunk c, which are done with.
  __device__ __forceinline__ void reload(uint32_t* words, int c, bool more) const {
#pragma unroll
    for (int v = 0; v < B; ++v)
      if (4 * v + 4 <= (c + 1) * B && 4 * v + 4 > c * B)
        ld_global_nc_v4_if(words + 4 * v, ahead_words + v * 512, policy, more);
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

#endif

}  // namespace lpq::cuda
