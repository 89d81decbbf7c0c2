// The same product as gemm_packed.cuh for few tokens (8 T <= 32), built to keep bytes in flight and to end soon after the last:
//  - a block takes a run of strips (32 rows) times a slice of K. It stages the slice's activations once, in the order of
//    operand B, with their sums; from then on its warps run by themselves, each through an equal run of packed blocks, along K
//    and then along N;
//  - packed blocks come ahead: D of them as 16-byte loads into a ring of registers, or (D = 0) `depth` of them through the bulk
//    engine into a ring in shared memory that the warp has for itself;
//  - mma.m16n8k16 multiplies: the format's words are its operand A;
//  - a strip that several warps of a block share is added up by the one that begins it, in the order of K; slices are added up
//    in their order either by the warp that delivers a strip last (through the workspace) or within a cluster, whose blocks
//    divide the strips among them (through each other's shared memory).
#pragma once
#include "cuda/kernels/gemm_common.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/stream_maps.h"

namespace lpq::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Sixteen bytes that are read once, if `wanted`: past L1, first to leave L2.
__device__ __forceinline__ void load_once(uint32_t* to, const void* from, uint64_t policy, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n}"
      : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
      : "l"(from), "l"(policy), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ uint2 load_pair(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_word(const void* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

// c = A B, and c += A B.
template <bool BF>
__device__ __forceinline__ void multiply_from_zero(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  c[0] = c[1] = c[2] = c[3] = 0;
  multiply<BF>(c, a, b0, b1);
}

template <int B, int T, int W, int D, bool BF, class Cast>
__device__ __forceinline__ void gemm_stream(const GemmPackedArgs& g, const StreamArgs& a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr bool Bulk = D == 0;
  constexpr int kSlots = Bulk ? 1 : D;  // of registers
  const int lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
  const int slice = static_cast<int>(blockIdx.x) % a.slices, set = static_cast<int>(blockIdx.x) / a.slices;
  const int k_first = stream_first(g.k_blocks, slice, a.slices), kbs = stream_first(g.k_blocks, slice + 1, a.slices) - k_first;
  const int strip_first = stream_first(g.n_blocks, set, a.sets), strips = stream_first(g.n_blocks, set + 1, a.sets) - strip_first;
  const int ring_stage = 512 * B + g.groups_per_block * (64 + 32 * g.zero_kind);
  const StreamShared places = stream_shared(T, W, a.k_most, g.groups_per_block, Bulk ? W * a.depth : 0, ring_stage, a.strips_most, a.cluster ? a.slices : 1);
  float* const sums = reinterpret_cast<float*>(shared + places.sums);
  float4* const heads = reinterpret_cast<float4*>(shared + places.heads) + lane;
  float4* const parts = reinterpret_cast<float4*>(shared + places.parts) + lane;
  const uint32_t activations = shared_address(shared);
  const uint32_t barriers = activations + places.ring + warp * 8 * a.depth, ring = activations + places.ring + stream_barriers(W * a.depth) + warp * a.depth * ring_stage;

  const int total = strips * kbs, first = stream_first(total, warp, W), last = stream_first(total, warp + 1, W);
  const int front = first / kbs;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));

  // What is loaded next.
  int ahead_k = first - front * kbs, ahead = first;
  const unsigned char* ahead_words = g.weights + (static_cast<long long>(strip_first + front) * g.k_blocks + k_first + ahead_k) * (512 * B) + (Bulk ? 0 : lane * 16);
  long long ahead_groups = static_cast<long long>(strip_first + front) * g.groups;  // row of scales
  const int own_group = lane & 3 & (g.groups_per_block - 1), last_group = g.groups - 1;

  uint32_t q[kSlots][4 * B];
  uint2 scale_ring[kSlots], zero_ring[kSlots];
#pragma unroll
  for (int d = 0; d < kSlots; ++d) {
    scale_ring[d] = zero_ring[d] = make_uint2(0, 0);
#pragma unroll
    for (int w = 0; w < 4 * B; ++w) q[d][w] = 0;
  }
  // Scales and zero points: lane (g, t) takes its rows' of group t of the block, so one load serves up to four groups.
  const auto load_side = [&](uint2& scales, uint2& zeros) {
    const int group = g.channel ? 0 : min((k_first + ahead_k) * g.groups_per_block + own_group, last_group);
    const long long at = (ahead_groups + group) * 32 + (lane >> 2) * 4;
    scales = load_pair(g.scales + at);
    if (g.zero_kind == 1) zeros.x = load_word(g.zeros + at);
    else if (g.zero_kind == 2) zeros = load_pair(g.zeros + at * 2);
  };
  const auto step_ahead = [&] {
    ++ahead;
    ahead_words += 512 * B;
    if (++ahead_k == kbs) ahead_k = 0, ahead_words += static_cast<long long>(g.k_blocks - kbs) * (512 * B), ahead_groups += g.groups;
  };
  // One lane: a packed block with its scales and zero points into a stage.
  const auto bulk_load = [&](int stage) {
    const uint32_t to = ring + stage * ring_stage, barrier = barriers + 8 * stage;
    const int group = g.channel ? 0 : (k_first + ahead_k) * g.groups_per_block;
    const int groups = min(g.groups_per_block, g.groups - group);
    const long long at = (ahead_groups + group) * 32;
    barrier_expect(barrier, 512 * B + groups * (64 + 32 * g.zero_kind));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(ahead_words),
                 "r"(512 * B), "r"(barrier), "l"(policy)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to + 512 * B), "l"(g.scales + at),
                 "r"(groups * 64), "r"(barrier)
                 : "memory");
    if (g.zero_kind)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to + 512 * B + g.groups_per_block * 64),
                   "l"(g.zeros + at * g.zero_kind), "r"(groups * 32 * g.zero_kind), "r"(barrier)
                   : "memory");
  };

  if constexpr (Bulk) {
    if (lane == 0) {
      for (int d = 0; d < a.depth; ++d) barrier_init(barriers + 8 * d, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    for (int d = 0; d < a.depth && ahead < last; ++d) {
      if (lane == 0) bulk_load(d);
      step_ahead();
    }
  } else {
#pragma unroll
    for (int d = 0; d < D; ++d)
      if (ahead < last) {
#pragma unroll
        for (int v = 0; v < B; ++v) load_once(q[d] + 4 * v, ahead_words + v * 512, policy, true);
        load_side(scale_ring[d], zero_ring[d]);
        step_ahead();
      }
  }
  __syncwarp();
  if (a.cluster) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  // Weights, scales and zero points do not come from the operation before; all else may.
  if (a.overlap) asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");

  // Activations: a warp takes 128 k of eight tokens at once; a lane 32 k of one token.
  for (int item = warp; item < kbs * T; item += W) {
    const int kb = item / T, tile = item % T, token = lane & 7, chunk = lane >> 3;
    const int row = tile * 8 + token, column = (k_first + kb) * kBlockK + chunk * 32;
    uint32_t x[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (row < g.m && column + 8 * j < g.k) v = *reinterpret_cast<const uint4*>(g.x + static_cast<long long>(row) * g.k + column + 8 * j);
      x[j][0] = v.x, x[j][1] = v.y, x[j][2] = v.z, x[j][3] = v.w;
    }
    unsigned char* to = shared + stream_fragment(kb, chunk, tile, T);
#pragma unroll
    for (int t = 0; t < 4; ++t) *reinterpret_cast<uint4*>(to + 16 * stream_slot(token, t)) = make_uint4(x[0][t], x[1][t], x[2][t], x[3][t]);
    if constexpr (Cast::kSums) {
      float eight[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float two[4];
#pragma unroll
        for (int t = 0; t < 4; ++t)
          two[t] = BF ? __uint_as_float(x[j][t] << 16) + __uint_as_float(x[j][t] & 0xffff0000u)
                      : __low2float(*reinterpret_cast<const __half2*>(&x[j][t])) + __high2float(*reinterpret_cast<const __half2*>(&x[j][t]));
        eight[j] = (two[0] + two[1]) + (two[2] + two[3]);
      }
      float s = (eight[0] + eight[1]) + (eight[2] + eight[3]);
      if (g.groups_per_block <= 2) s += __shfl_xor_sync(0xffffffffu, s, 8);
      if (g.groups_per_block == 1) s += __shfl_xor_sync(0xffffffffu, s, 16);
      const int group = chunk * g.groups_per_block / 4;
      if (chunk * g.groups_per_block % 4 == 0) sums[(kb * g.groups_per_block + group) * 8 * T + row] = s;
    }
  }
  if (a.cluster) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  __syncthreads();

  const Cast cast(g.is_signed != 0, g.exponent);
  float constant[4];  // minus what is subtracted for each unit of S, where there are no zero points of groups
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    constant[r] = 0;
    if constexpr (Cast::kSums) constant[r] = -fmaf(g.zero, Cast::gain(r), Cast::bias());
  }
  float sum[2][T][4];
  const auto clear = [&] {
#pragma unroll
    for (int nt = 0; nt < 2; ++nt)
#pragma unroll
      for (int t = 0; t < T; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[nt][t][i] = 0;
  };
  const auto vector = [&](int v) { return make_float4(sum[v / T][v % T][0], sum[v / T][v % T][1], sum[v / T][v % T][2], sum[v / T][v % T][3]); };

  // The slice's part of strip `strip` of the block is in `sum`.
  const auto deliver = [&](int strip) {
    const int row = strip_first + strip;
    if (a.slices == 1) {
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) store_vector<T, BF>(g, row, 0, v, lane, vector(v));
    } else if (a.cluster) {
      const uint32_t here = shared_address(parts + ((strip / a.slices) * a.slices + slice) * (2 * T * 32));
      uint32_t there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(strip % a.slices));
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) {
        const float4 f = vector(v);
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(there + v * 512), "f"(f.x), "f"(f.y), "f"(f.z), "f"(f.w) : "memory");
      }
    } else {
      float4* const base = reinterpret_cast<float4*>(g.partial) + static_cast<long long>(row) * a.slices * (2 * T * 32) + lane;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) __stcg(base + (slice * 2 * T + v) * 32, vector(v));
      // One lane releases and acquires for the warp: what the others wrote happened before its atomic, what they read, after.
      __syncwarp();
      unsigned before = 0;
      if (lane == 0) asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(g.counters + row) : "memory");
      before = __shfl_sync(0xffffffffu, before, 0);
      __syncwarp();
      if (before + 1 == static_cast<unsigned>(a.slices)) {
        if (lane == 0) g.counters[row] = 0;  // for the next launch
#pragma unroll 2
        for (int v = 0; v < 2 * T; ++v) {
          float4 all = __ldcg(base + v * 32);
#pragma unroll 4
          for (int s = 1; s < a.slices; ++s) {
            const float4 part = __ldcg(base + (s * 2 * T + v) * 32);
            all.x += part.x, all.y += part.y, all.z += part.z, all.w += part.w;
          }
          store_vector<T, BF>(g, row, 0, v, lane, all);
        }
      }
    }
  };

  clear();
  int strip = front, k = first - front * kbs;
  bool began_inside = k != 0;
  const uint32_t own_slot = activations + 16 * stream_slot(lane >> 2, lane & 3);
  float part[2][T][4];

  // Chunk by chunk: `q` holds the words, `loaded(c)` is told that those of chunk c are done with.
  const auto multiply_block = [&](const uint32_t* words, uint2 scales, uint2 zeros, const auto& done_with) {
    const uint32_t x = own_slot + k * (kSliceBytes * T);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint4 b[T];
#pragma unroll
      for (int t = 0; t < T; ++t) b[t] = load_shared16(x + (c * T + t) * 512);
#pragma unroll
      for (int ks = 0; ks < 2; ++ks) {
        uint32_t w[2][4];
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int i = 0; i < 4; ++i) w[nt][i] = cast.pair(words + c * B, 4 * (2 * ks + (i >> 1)) + 2 * nt + (i & 1));
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int t = 0; t < T; ++t) {
            if (c == 0 && ks == 0) multiply_from_zero<BF>(part[nt][t], w[nt], b[t].x, b[t].y);
            else multiply<BF>(part[nt][t], w[nt], ks ? b[t].z : b[t].x, ks ? b[t].w : b[t].y);
          }
      }
      done_with(c);
      if (c == 3 || g.groups_per_block == 4 || (c == 1 && g.groups_per_block == 2)) {
        const int group = g.groups_per_block == 4 ? c : g.groups_per_block == 2 ? c >> 1 : 0;
        uint2 s = scales, z = zeros;
        if (g.groups_per_block > 1) {
          s.x = __shfl_sync(0xffffffffu, s.x, (lane & 28) + group), s.y = __shfl_sync(0xffffffffu, s.y, (lane & 28) + group);
          if (g.zero_kind) z.x = __shfl_sync(0xffffffffu, z.x, (lane & 28) + group), z.y = __shfl_sync(0xffffffffu, z.y, (lane & 28) + group);
        }
        float scale[4], zero[4];
        const uint32_t pairs[2] = {s.x, s.y};
        if (g.scale_bf16) {
#pragma unroll
          for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), true);
        } else {
#pragma unroll
          for (int r = 0; r < 4; ++r) scale[r] = to_float(static_cast<uint16_t>(pairs[r >> 1] >> 16 * (r & 1)), false);
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) zero[r] = constant[r];
        if constexpr (Cast::kSums) {
          if (g.zero_kind) {
            const uint32_t halves[2] = {z.x, z.y};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const float own = g.zero_kind == 1 ? static_cast<float>((z.x >> 8 * r) & 255) : to_float(static_cast<uint16_t>(halves[r >> 1] >> 16 * (r & 1)), false);
              zero[r] = -fmaf(g.zero + own, Cast::gain(r), Cast::bias());
            }
          }
#pragma unroll
          for (int r = 0; r < 4; ++r) scale[r] *= Cast::ungain(r);
        } else {
#pragma unroll
          for (int r = 0; r < 4; ++r) scale[r] *= cast.unpower;
        }
        add_group<T, Cast::kSums>(sum, part, scale, zero, sums + (k * g.groups_per_block + group) * 8 * T, lane);
        if (c < 3) {
#pragma unroll
          for (int nt = 0; nt < 2; ++nt)
#pragma unroll
            for (int t = 0; t < T; ++t)
#pragma unroll
              for (int i = 0; i < 4; ++i) part[nt][t][i] = 0;
        }
      }
    }
  };
  // After a packed block: the strip's or the run's end.
  const auto step_on = [&](int at) {
    const bool strip_ends = ++k == kbs;
    if (strip_ends || at + 1 == last) {
      if (began_inside) {
#pragma unroll
        for (int v = 0; v < 2 * T; ++v) heads[(warp * 2 * T + v) * 32] = vector(v);
      } else if (strip_ends) {
        deliver(strip);
      }
      if (strip_ends) {
        clear();
        k = 0, ++strip, began_inside = false;
      }
    }
  };

  if constexpr (Bulk) {
    int stage = 0, parity = 0;
    for (int at = first; at < last; ++at) {
      const uint32_t from = ring + stage * ring_stage, side = from + 512 * B;
      barrier_wait(barriers + 8 * stage, parity);
#pragma unroll
      for (int v = 0; v < B; ++v) {
        const uint4 word = load_shared16(from + lane * 16 + v * 512);
        q[0][4 * v] = word.x, q[0][4 * v + 1] = word.y, q[0][4 * v + 2] = word.z, q[0][4 * v + 3] = word.w;
      }
      // A last block may hold fewer groups than others.
      const int group = g.channel ? 0 : min(own_group, last_group - (k_first + k) * g.groups_per_block);
      uint2 zeros = make_uint2(0, 0);
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(scale_ring[0].x), "=r"(scale_ring[0].y) : "r"(side + group * 64 + (lane >> 2) * 8) : "memory");
      const uint32_t zeros_at = side + g.groups_per_block * 64;
      if (g.zero_kind == 1) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(zeros.x) : "r"(zeros_at + group * 32 + (lane >> 2) * 4) : "memory");
      if (g.zero_kind == 2) asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(zeros.x), "=r"(zeros.y) : "r"(zeros_at + group * 64 + (lane >> 2) * 8) : "memory");
      __syncwarp();
      if (ahead < last) {
        if (lane == 0) bulk_load(stage);
        step_ahead();
      }
      multiply_block(q[0], scale_ring[0], zeros, [](int) {});
      step_on(at);
      if (++stage == a.depth) stage = 0, parity ^= 1;
    }
  } else {
    for (int at = first; at < last; at += D) {
#pragma unroll
      for (int d = 0; d < D; ++d) {
        if (D > 1 && at + d >= last) break;
        const bool more = ahead < last;
        // The words of the block D further take the places of those that are done with.
        multiply_block(q[d], scale_ring[d], zero_ring[d], [&](int c) {
#pragma unroll
          for (int v = 0; v < B; ++v)
            if (4 * v + 4 <= (c + 1) * B && 4 * v + 4 > c * B) load_once(q[d] + 4 * v, ahead_words + v * 512, policy, more);
        });
        if (more) {
          load_side(scale_ring[d], zero_ring[d]);
          step_ahead();
        }
        step_on(at + d);
      }
    }
  }

  __syncthreads();
  // The strip that this warp began and did not end: those after it hold the rest.
  if (first < last && !began_inside && k != 0) {
    const int end = (strip + 1) * kbs;
    for (int w = warp + 1; w < W; ++w) {
      const int from = stream_first(total, w, W);
      if (from >= end) break;
      if (stream_first(total, w + 1, W) == from) continue;
#pragma unroll
      for (int v = 0; v < 2 * T; ++v) {
        const float4 other = heads[(w * 2 * T + v) * 32];
        sum[v / T][v % T][0] += other.x, sum[v / T][v % T][1] += other.y, sum[v / T][v % T][2] += other.z, sum[v / T][v % T][3] += other.w;
      }
    }
    deliver(strip);
  }
  if (a.cluster) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    // Vectors of the strips slice, slice + slices, ...
    const int mine = (strips - slice + a.slices - 1) / a.slices;
    for (int i = warp; i < mine * 2 * T; i += W) {
      const int at = i / (2 * T), v = i % (2 * T);
      const float4* from = parts + at * a.slices * (2 * T * 32) + v * 32;
      float4 all = from[0];
      for (int s = 1; s < a.slices; ++s) {
        const float4 part4 = from[s * 2 * T * 32];
        all.x += part4.x, all.y += part4.y, all.z += part4.z, all.w += part4.w;
      }
      store_vector<T, BF>(g, strip_first + at * a.slices + slice, 0, v, lane, all);
    }
  }
}

#endif

}  // namespace lpq::cuda
