// A warp's way through its run of packed blocks in stream.cuh.
#pragma once
#include "cuda/gemm/kernels/stream/loads.cuh"
#include "cuda/gemm/kernels/stream/products.cuh"
#include "cuda/gemm/kernels/stream/sums.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// A warp's way through its run. The block that is multiplied lies at `k` of strip `strip`, `left` blocks before the
// strip's part or the run ends.
template <int B, bool Lean, class Work, class Loads, class Products, class Sums>
struct StreamRun {
  static constexpr int P = Loads::P, D = Loads::D;
  const GemmPackedArgs& g;
  const Work& work;
  Loads& loads;
  Products& products;
  Sums& sums;
  const uint32_t never;  // 0, which the compiler does not know
  const int lane;
  int strip, k, remaining, segment, left;
  bool began_inside;
  const uint16_t* side_at;  // scales of the next unit
  int side_step;
  long long side_jump;
  int slot = 0, part_left, until = 0;
  bool more;

  __device__ __forceinline__ StreamRun(const GemmPackedArgs& args, const StreamArgs& a, const Work& of, Loads& next,
                                       Products& multiplier, Sums& to, int first, int last)
      : g(args),
        work(of),
        loads(next),
        products(multiplier),
        sums(to),
        never(static_cast<uint32_t>(a.overlap) >> 8),
        lane(next.lane),
        strip(first / of.kbs) {
    k = first - strip * work.kbs, remaining = last - first;
    segment = left = min(work.kbs - k, remaining);
    began_inside = k != 0;
    products.begin(k);
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
      products.begin(0);
    }
    segment = left = min(work.kbs - k, remaining);
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
      for (int p = 0; p < P; ++p)
        products.template simple_block<G>(p, q[From][p], loads.scale_ring[From][p], [](int) {});
    } else {
      products.template simple_block<G>(0, q[0][0], loads.scale_ring[0][0],
                                        [&](int c) { loads.reload(q[0][0], c, more); });
      ld_global_nc_v2_if(loads.scale_ring[0][0], side_at, more);
    }
    loads.ahead_words += P * 512 * B, side_at += P * side_step;
    products.advance(P, Products::template kStarts<G>);
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
  __device__ __forceinline__ void general_block(uint32_t* words, uint2& scales) {
    const bool more = loads.ahead > 0;
    products.general_block(words, scales, loads.zeros, [&](int c) { loads.reload(words, c, more); });
    if (more) {
      loads.load_side(scales);
      loads.step_ahead();
    }
  }
};

#endif

}  // namespace lpq::cuda
