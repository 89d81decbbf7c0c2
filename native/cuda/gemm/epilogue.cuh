// What both kernels do with sums: scales and zero points of a group, outputs, strips that several blocks share.
#pragma once
#include "cuda/gemm/dequant.cuh"
#include "cuda/gemm/families/packed.h"
#include "cuda/numbers.cuh"
#include "cuda/ptx/global_memory.cuh"
#include "cuda/ptx/shared_memory.cuh"

namespace lpq::cuda {

// Of this lane's rows n' = 8 r + lane / 4 in one group: what sums of pairs are multiplied by, and minus what is
// subtracted for each unit of S. Scales and zeros lie in shared memory as packed.
template <class Cast>
__device__ __forceinline__ void group_factors(const GemmPackedArgs& g, const Cast& cast, uint32_t scales,
                                              uint32_t zeros, int lane, float (&scale)[4], float (&zero)[4]) {
  uint32_t pairs[2];
  ld_shared_v2(pairs[0], pairs[1], scales + (lane >> 2) * 8);
  float s[4];
  if (g.scale_bf16) {
#pragma unroll
    for (int r = 0; r < 4; ++r) s[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), true);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) s[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), false);
  }
  if constexpr (Cast::kSums) {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = s[r] * Cast::ungain(r);
    float z[4] = {g.zero, g.zero, g.zero, g.zero};
    if (g.zero_kind == 1) {
      const uint32_t bytes = ld_shared(zeros + (lane >> 2) * 4);
#pragma unroll
      for (int r = 0; r < 4; ++r) z[r] += static_cast<float>((bytes >> 8 * r) & 255);
    } else if (g.zero_kind == 2) {
      uint32_t halves[2];
      ld_shared_v2(halves[0], halves[1], zeros + (lane >> 2) * 8);
#pragma unroll
      for (int r = 0; r < 4; ++r) z[r] += to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r] = -fmaf(z[r], Cast::gain(r), Cast::bias());
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) scale[r] = s[r] * cast.unpower, zero[r] = 0;
  }
}

// sum += scale (part - zero' S); `ones`: S of 8 T tokens in shared memory.
template <int T, bool Sums>
__device__ __forceinline__ void add_group(float (&sum)[2][T][4], const float (&part)[2][T][4], const float (&scale)[4],
                                          const float (&zero)[4], const float* ones, int lane) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    float2 s = make_float2(0, 0);
    if (Sums) s = *reinterpret_cast<const float2*>(ones + t * 8 + 2 * (lane & 3));
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 2 * nt + (i >> 1);
        const float p = Sums ? fmaf(zero[r], i & 1 ? s.y : s.x, part[nt][t][i]) : part[nt][t][i];
        sum[nt][t][i] = fmaf(scale[r], p, sum[nt][t][i]);
      }
  }
}

// Vector v (of 2 T) of a warp's tile: rows 16 (v / T) + lane / 4 and 8 further, tokens 8 (v % T) + 2 (lane % 4) and the
// next.
template <int T, bool XB>
__device__ __forceinline__ void store_vector(const GemmPackedArgs& g, int strip, int tile, int v, int lane,
                                             float4 value) {
  const int n0 = (strip * g.warps_n + tile) * 32 + v / T * 16 + (lane >> 2), m0 = v % T * 8 + (lane & 3) * 2;
  const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int n = n0 + (i >> 1) * 8, m = m0 + (i & 1);
    if (n < g.n && m < g.m)
      g.y[static_cast<long long>(m) * g.n + n] = from_float<XB>(values[i] + (g.bias ? to_float(g.bias[n], XB) : 0.0f));
  }
}

// The strips at both ends of the run [first, last) of steps, if others share them: waits for their parts, adds up a
// slice in the order of the blocks. All blocks of the grid run at once, so nobody waits for ever.
template <int T, bool XB, class Sync>
__device__ __forceinline__ void finish_shared(const GemmPackedArgs& g, int first, int last, int thread, int threads,
                                              const Sync& sync) {
  if (first == last) return;
  const long long total = static_cast<long long>(g.strips) * g.steps;
  const int tile_vectors = g.warps_n * 2 * T * 32;
  const int front = first / g.steps, back = (last - 1) / g.steps;
  for (int strip = front; strip <= back; strip += max(1, back - front)) {
    const long long begin = static_cast<long long>(strip) * g.steps, end = begin + g.steps;
    const int from = static_cast<int>(((begin + 1) * gridDim.x - 1) / total),
              to = static_cast<int>((end * gridDim.x - 1) / total);
    if (from == to) continue;
    const int sharers = to - from + 1, rank = static_cast<int>(blockIdx.x) - from;
    if (thread == 0) {
      wait_for_count(g.counters + 2 * strip, static_cast<unsigned>(sharers));
    }
    sync();
    const int slice_begin = static_cast<int>(static_cast<long long>(tile_vectors) * rank / sharers);
    const int slice_end = static_cast<int>(static_cast<long long>(tile_vectors) * (rank + 1) / sharers);
    for (int f = slice_begin + thread; f < slice_end; f += threads) {
      float4 value = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int c = from; c <= to; ++c) {
        // A block keeps its first strip's part in its first tile. Only `from` may have begun in an earlier strip.
        const int own = c == from && c * total / gridDim.x < begin ? 1 : 0;
        const float4 part = __ldcg(reinterpret_cast<const float4*>(g.partial) +
                                   (static_cast<long long>(c) * 2 + own) * tile_vectors + f);
        value.x += part.x, value.y += part.y, value.z += part.z, value.w += part.w;
      }
      store_vector<T, XB>(g, strip, f / (2 * T * 32), f / 32 % (2 * T), f % 32, value);
    }
    sync();
    // The last to be done leaves both counters at 0 for the next launch.
    if (thread == 0 && atomicAdd(g.counters + 2 * strip + 1, 1u) + 1 == static_cast<unsigned>(sharers))
      g.counters[2 * strip] = g.counters[2 * strip + 1] = 0;
  }
}

}  // namespace lpq::cuda
