// What a warp of stream.cuh multiplies: a packed block from its registers, with activations from shared memory.
//   words (lane, pair) -> (n, k): PackedChunk; sums (lane, reg) -> (n, token): FragmentC
#pragma once
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/kernels/stream/loads.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Products of packed blocks with the activations at `x_at`, whose sums or starts lie at `start_at`.
template <int B, int T, bool BF, class Cast, bool Split, class Work>
struct StreamProducts {
  static constexpr int TX = Split ? 2 * T : T;
  // Rows r and r + 2 of the first product's start differ only if their gains do.
  static constexpr int Q = Cast::kStarts;
  template <int G>
  static constexpr int kStarts = kStartBytes * T * G;  // of a packed block of G groups
  const GemmPackedArgs& g;
  const Work& work;
  float (&sum)[2][T][4];
  const ChunkCast<Cast>& cast;
  const float (&constant)[4];
  const unsigned char* const shared;
  const int lane;
  const uint32_t own_slot = shared_address(shared) + 16 * stream_slot(lane >> 2, lane & 3),
                 first_start = shared_address(shared) + work.places.starts + (work.simple ? 16 * (lane & 3) : 0);
  uint32_t x_at = own_slot, start_at = first_start;

  // To block k of the slice; by so many blocks on.
  __device__ __forceinline__ void begin(int k) {
    x_at = own_slot + k * (kSliceBytes * TX), start_at = first_start + k * work.starts_step();
  }
  __device__ __forceinline__ void advance(int blocks, int starts_step) {
    x_at += blocks * kSliceBytes * TX, start_at += blocks * starts_step;
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
        row_numbers(own, g.scale_bf16, scale);
        add_group<T, false>(sum, part, scale, scale, nullptr, lane);
        if (c < 3) begin_group<G>(part, p, group + 1);
      }
    }
  }
  // A packed block with any zero points, and with groups that K does not fill; `cast_is` as above.
  template <class CastIs>
  __device__ __forceinline__ void general_block(const uint32_t* words, uint2 scales, uint2 zeros,
                                                const CastIs& cast_is) {
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
      cast_is(c);
      if (c == 3 || groups == 4 || (c == 1 && groups == 2)) {
        add_general_group(part, scales, zeros, groups == 4 ? c : groups == 2 ? c >> 1 : 0);
        clear_sums(part);
      }
    }
    advance(1, work.starts_step());
  }

 private:
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
  __device__ __forceinline__ void add_general_group(const float (&part)[2][T][4], uint2 s, uint2 z, int group) {
    if (work.groups_per_block > 1) {
      s.x = __shfl_sync(0xffffffffu, s.x, (lane & 28) + group),
      s.y = __shfl_sync(0xffffffffu, s.y, (lane & 28) + group);
      if (g.zero_kind)
        z.x = __shfl_sync(0xffffffffu, z.x, (lane & 28) + group),
        z.y = __shfl_sync(0xffffffffu, z.y, (lane & 28) + group);
    }
    float scale[4], zero[4];
    row_numbers(s, g.scale_bf16, scale);
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
        sum, part, scale, zero,
        reinterpret_cast<const float*>(shared + (start_at - shared_address(shared))) + group * 8 * T, lane);
  }
};

#endif

}  // namespace lpq::cuda
