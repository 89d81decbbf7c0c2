// The weights of large.cuh: words of packed blocks -> registers of operand A, scales in them.
#pragma once
#include "cuda/gemm/kernels/large/factors.cuh"
#include "cuda/gemm/packed_words.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/unroll.cuh"

namespace lpq::cuda {

// The weights of a warp: a packed block's 32 columns. A stage holds the vectors
// of words that begin in its half, after the activations; of an odd number of bits the one in the middle stays in
// registers.
template <int B, int T, bool BF, class Cast>
struct LargeWeights {
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

  __device__ __forceinline__ LargeWeights(const GemmPackedArgs& args, uint32_t slots, int lane_, int warp_)
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
          const int at = v >= kHalf<0> && kProducts == 8 ? v - kHalf<0> : v;
          ld_shared_v4(q + 4 * v, stage + 1024 * T + (warp * kHalf<0> + at) * 512 + lane * 16);
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

}  // namespace lpq::cuda
