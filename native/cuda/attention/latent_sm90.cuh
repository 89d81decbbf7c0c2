// Latent attention over its packed cache by wgmma, for latents of 512 dims and blocks of 64 rows (a row is a query head
// of a query token). One warpgroup brings tiles of 64 tokens: it loads codes and numbers to registers, half a tile
// ahead, and writes halves to a ring of two tiles, each dim once for K and for the values; rotary dims come by
// cp.async. Two warpgroups multiply. Each has S = Q Kᵀ of half the tile's tokens; they tell each other largest scores,
// then weights, through shared memory; each has O = P C of half the dims, P from registers, C by rows of tokens.
// latent_join brings splits together.
//
//   Q, C in shared memory   [64 dims][64 rows or tokens][128 bytes], swizzled (prefill_place); rotary dims last
//   P in shared memory      [64 rows][64 tokens], likewise
//   S, O                    (lane, [n][i]) -> row 16 warp + lane / 4 + 8 (i / 2), column 8 n + 2 (lane % 4) + i % 2
//   codes                   (thread, [k]) -> token thread / 64 + 2 k of 32, dims 8 (thread % 64) ..
#pragma once
#include "cuda/attention/latent.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

struct LatentRings {
  uint32_t queries;
  __device__ __forceinline__ uint32_t tile(int n) const {
    return queries + LatentHopper::kTiles + static_cast<uint32_t>(n % 2 * LatentHopper::kTile);
  }
  __device__ __forceinline__ uint32_t weights() const { return queries + LatentHopper::kWeights; }
  __device__ __forceinline__ uint32_t peak(int warpgroup, int row) const {
    return queries + LatentHopper::kPeaks + static_cast<uint32_t>((64 * warpgroup + row) * 4);
  }
  __device__ __forceinline__ uint32_t full(int n) const {
    return queries + LatentHopper::kBarriers + static_cast<uint32_t>(n % 2 * 8);
  }
  __device__ __forceinline__ uint32_t empty(int n) const { return full(n) + 16; }
  __device__ __forceinline__ static int turn(int n) { return n / 2 & 1; }
};

// Where 32 tokens lie, and how many of them there are.
struct LatentPlace {
  const unsigned char* page;
  int token, here;
};
__device__ __forceinline__ LatentPlace latent_place_of(const LatentArgs& a, const LatentOwn<LatentHopper>& own,
                                                       int first) {
  const int here = max(0, min(own.length - first, 32));
  int page = here > 0 ? a.table[static_cast<long long>(own.sequence) * a.table_pages + first / a.page_tokens] : 0;
  if (static_cast<unsigned>(page) >= static_cast<unsigned>(a.page_count)) *a.fault = 1, page = 0;
  return {a.pages + page * a.page_bytes, first % a.page_tokens, here};
}

// Rows of 16-bit dims to where products read them, from 64 of dims `block` on.
__device__ __forceinline__ void latent_copy(uint32_t to, const LatentPlace& place, const unsigned char* from, int dims,
                                            int half, int block) {
  const int chunks = dims / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) & 127; i < 32 * chunks; i += 128) {
    const int token = i / chunks, c = i % chunks;
    cp_async_16(to + static_cast<uint32_t>(block * 64 * 128) + prefill_place<64>(32 * half + token, c),
                from + 2ll * place.token * dims + 16ll * i, token < place.here ? 16 : 0);
  }
}

// Rotary dims of queries, or of a tile, that there are none of: all 64 are multiplied.
template <int THREADS>
__device__ __forceinline__ void latent_clear(const LatentArgs& a, uint32_t to) {
  const int missing = (kLatentRotary - a.rotary) / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % THREADS; i < 64 * missing; i += THREADS)
    st_shared_v4(to + prefill_place<64>(i / missing, (kLatentDims + a.rotary) / 8 + i % missing),
                 make_uint4(0, 0, 0, 0));
}

// A tile is there, as far as this warp goes.
__device__ __forceinline__ void latent_give(const LatentRings& rings, int n) {
  cp_async_wait<0>();
  fence_proxy_async_shared();
  __syncwarp();
  if ((threadIdx.x & 31) == 0) mbarrier_arrive(rings.full(n));
}

// Codes and numbers of 32 tokens in registers.
template <int BITS>
struct LatentCodes {
  uint32_t word[16][BITS == 8 ? 2 : 1], number[16];
};

template <int BITS>
__device__ __forceinline__ void latent_produce(const LatentArgs& a, const LatentOwn<LatentHopper>& own,
                                               const LatentRings& rings) {
  constexpr int kRow = kLatentDims * BITS / 8;
  const int thread = static_cast<int>(threadIdx.x) & 127, c = thread % 64, tiles = own.end - own.begin;
  const int code = BITS == 2 ? c / 2 * 4 : c * BITS, number = a.numbers + (8 * c >> a.group_shift) * 4;
  LatentCodes<BITS> held;  // of half a tile
  const auto place_of = [&](int half) { return latent_place_of(a, own, own.begin * 64 + 32 * half); };
  const auto load = [&](LatentCodes<BITS>& to, const LatentPlace& place, int k) {
    const int i = thread / 64 + 2 * k;
    const bool there = i < place.here;
    const unsigned char *const at = place.page + static_cast<long long>(place.token + i) * kRow + code,
                               *const pair = place.page + number + (place.token + i) * a.number_row;
    to.number[k] = there ? *reinterpret_cast<const uint32_t*>(pair) : 0;
    if constexpr (BITS == 8) {
      const uint2 two = there ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
      to.word[k][0] = two.x, to.word[k][1] = two.y;
    } else {
      to.word[k][0] = there ? *reinterpret_cast<const uint32_t*>(at) : 0;
    }
  };
  const auto store = [&](const LatentCodes<BITS>& of, uint32_t tile, int half, int k) {
    const uint32_t scale = lower_twice(of.number[k]), zero = upper_twice(of.number[k]);
    uint32_t x[4];
    each<0, 4>([&](auto step) {
      constexpr int J = decltype(step)::value;
      const uint32_t word = BITS == 8   ? of.word[k][BITS == 8 ? J / 2 : 0]
                            : BITS == 2 ? of.word[k][0] >> 8 * (c & 1)
                                        : of.word[k][0];
      x[J] = fma_x2<false>(prefill_codes<BITS, BITS == 8 ? J % 2 : J>(word), scale, zero);
    });
    st_shared_v4(tile + prefill_place<64>(32 * half + thread / 64 + 2 * k, c), make_uint4(x[0], x[1], x[2], x[3]));
  };
  const LatentPlace first = place_of(0);
#pragma unroll
  for (int k = 0; k < 16; ++k) load(held, first, k);
#pragma unroll 1
  for (int n = 0; n < tiles; ++n) {
    if (n >= 2) mbarrier_wait_parity(rings.empty(n), LatentRings::turn(n) ^ 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const LatentPlace place = place_of(2 * n + half);
      latent_copy(rings.tile(n), place, place.page + a.rope, a.rotary, half, kLatentDims / 64);
    }
    cp_async_commit();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const LatentPlace next = place_of(2 * n + half + 1);
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        store(held, rings.tile(n), half, k);
        load(held, next, k);
      }
    }
    latent_give(rings, n);
  }
}

// Latents of 16 bits come by cp.async.
__device__ __forceinline__ void latent_produce_exact(const LatentArgs& a, const LatentOwn<LatentHopper>& own,
                                                     const LatentRings& rings) {
  const int tiles = own.end - own.begin;
#pragma unroll 1
  for (int n = 0; n < tiles; ++n) {
    if (n >= 2) mbarrier_wait_parity(rings.empty(n), LatentRings::turn(n) ^ 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const LatentPlace place = latent_place_of(a, own, (own.begin + n) * 64 + 32 * half);
      latent_copy(rings.tile(n), place, place.page, kLatentDims, half, 0);
      latent_copy(rings.tile(n), place, place.page + a.rope, a.rotary, half, kLatentDims / 64);
    }
    cp_async_commit();
    latent_give(rings, n);
  }
}

__device__ __forceinline__ void latent_multiply(const LatentArgs& a, const LatentOwn<LatentHopper>& own,
                                                const LatentRings& rings) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // Known to be the same in a warp: products that lanes could have left are done one by one.
  const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0), warpgroup = warp >> 2, row = 16 * (warp & 3) + (lane >> 2);
  const auto meet = [] { bar_sync(5, 256); };
  latent_queries<LatentHopper, 256>(a, own, [&](int r, int c) { return rings.queries + prefill_place<64>(r, c); });
  latent_clear<256>(a, rings.queries);
  fence_proxy_async_shared();
  meet();
  int sees[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) sees[c] = min(own.sees(a, row + 8 * c), own.length);
  const int least = min(own.sees(a, 16 * (warp & 3)), own.length), tiles = own.end - own.begin;
  float score[4][4], out[32][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  uint32_t p[4][4];
  const uint64_t q = wgmma_descriptor(rings.queries);
  const auto multiply_keys = [&](int n) {
    const uint64_t k = wgmma_descriptor(rings.tile(n) + static_cast<uint32_t>(warpgroup * 32 * 128));
#pragma unroll
    for (int kc = 0; kc < kLatentWidth / 16; ++kc) {
      const uint64_t at = static_cast<uint64_t>((kc / 4 * 64 * 128 >> 4) + kc % 4 * 2);
      wgmma_k16<false>(score, q + at, k + at, kc > 0);
    }
    wgmma_commit();
  };
  const auto multiply_values = [&](int n) {
    const uint64_t v = wgmma_descriptor_rows(rings.tile(n) + static_cast<uint32_t>(warpgroup * 4 * 64 * 128), 64 * 128);
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_k16_rows<false>(out, p[k], v + static_cast<uint64_t>(k * 128), true);
    wgmma_commit();
  };
  // Sums are read behind waits only.
  const auto keep = [](auto& sums) {
#pragma unroll
    for (auto& each : sums)
#pragma unroll
      for (float& sum : each) keep_here(sum);
  };
  const auto release = [&](int n) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(rings.empty(n));
  };
  float factor[2];
  // Scores of this warpgroup's tokens become weights, in shared memory; `factor`: of what sums were before.
  const auto weigh = [&](int n) {
    const int first = (own.begin + n) * 64 + 32 * warpgroup;
    float peak[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) score[m][i] *= a.scale;
    if (first + 32 > least)
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + 8 * m + 2 * (lane & 3) + (i & 1) >= sees[i >> 1]) score[m][i] = -INFINITY;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) peak[i >> 1] = fmaxf(peak[i >> 1], score[m][i]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2) peak[c] = fmaxf(peak[c], __shfl_xor_sync(0xffffffffu, peak[c], mask));
      if ((lane & 3) == 0) st_shared(rings.peak(warpgroup, row + 8 * c), __float_as_uint(peak[c]));
    }
    meet();
    float less[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float now =
          fmaxf(fmaxf(most[c], peak[c]), __uint_as_float(ld_shared(rings.peak(1 - warpgroup, row + 8 * c))));
      less[c] = now == -INFINITY ? 0 : -now;  // a row that has seen no token yet: weights of 0
      factor[c] = most[c] == -INFINITY ? 0 : ex2_approx(most[c] + less[c]);
      most[c] = now, total[c] *= factor[c];
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float low = ex2_approx(score[m][2 * c] + less[c]), high = ex2_approx(score[m][2 * c + 1] + less[c]);
        total[c] += low + high;
        st_shared(
            rings.weights() + prefill_place<64>(row + 8 * c, 4 * warpgroup + m) + static_cast<uint32_t>(4 * (lane & 3)),
            cvt_x2<false>(low, high));
      }
    meet();
  };
  const auto shrink = [&] {
    if (!__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int m = 0; m < 32; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][i] *= factor[i >> 1];
  };
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      ldmatrix_x4(p[k], rings.weights() + prefill_place<64>(16 * (warp & 3) + (lane & 15), 2 * k + (lane >> 4)));
  };
#pragma unroll 1
  for (int n = 0; n < tiles; ++n) {
    mbarrier_wait_parity(rings.full(n), LatentRings::turn(n));
    wgmma_fence();
    multiply_keys(n);
    wgmma_wait<0>();
    keep(score);
    weigh(n);
    shrink();
    take_weights();
    keep(out);
    wgmma_fence();
    multiply_values(n);
    wgmma_wait<0>();
    keep(out);
    release(n);
  }
  // Totals of both halves of the tokens.
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) total[c] += __shfl_xor_sync(0xffffffffu, total[c], mask);
    if ((lane & 3) == 0) st_shared(rings.peak(warpgroup, row + 8 * c), __float_as_uint(total[c]));
  }
  meet();
  float* const record = a.partial + (static_cast<long long>(own.tile) * a.splits + own.split) * LatentHopper::kRecord;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int of = row + 8 * c, dim = 256 * warpgroup + 2 * (lane & 3);
    // In one order, whichever warpgroup asks.
    const float all = __uint_as_float(ld_shared(rings.peak(0, of))) + __uint_as_float(ld_shared(rings.peak(1, of)));
    if (of >= own.rows) continue;
    if (a.splits > 1) {
      if ((lane & 3) == 0 && warpgroup == 0) record[of] = most[c], record[64 + of] = all;
      float* const to = record + 128 + of * kLatentDims + dim;
#pragma unroll
      for (int m = 0; m < 32; ++m)
        *reinterpret_cast<float2*>(to + 8 * m) = make_float2(out[m][2 * c], out[m][2 * c + 1]);
      continue;
    }
    const float inverse = all > 0 ? __fdiv_rn(1.0f, all) : 0;
    const long long at = (static_cast<long long>(own.sequence) * a.rows + own.first_row + of) * kLatentDims + dim;
#pragma unroll
    for (int m = 0; m < 32; ++m) latent_write(a, at + 8 * m, out[m][2 * c] * inverse, out[m][2 * c + 1] * inverse);
  }
}

__device__ __forceinline__ void latent_decode_sm90(const LatentArgs& a) {
  const LatentRings rings{shared_address(dynamic_shared())};
  const LatentOwn<LatentHopper> own(a);
  if (threadIdx.x == 0) {
    for (int n = 0; n < 2; ++n) mbarrier_init(rings.full(n), 4), mbarrier_init(rings.empty(n), 8);  // warps
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    setmaxnreg_dec<504 - 2 * LatentHopper::kRegisters>();
    for (int n = 0; n < 2; ++n) latent_clear<128>(a, rings.tile(n));
    if (a.bits == 16) latent_produce_exact(a, own, rings);
    else if (a.bits == 8) latent_produce<8>(a, own, rings);
    else if (a.bits == 4) latent_produce<4>(a, own, rings);
    else latent_produce<2>(a, own, rings);
  } else {
    setmaxnreg_inc<LatentHopper::kRegisters>();
    latent_multiply(a, own, rings);
  }
}

#define LPQ_LATENT_SM90(name)                                                        \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::LatentHopper::kThreads, 1) \
      lpq_latent_decode_##name(const __grid_constant__ lpq::cuda::LatentArgs a) {    \
    lpq::cuda::latent_decode_sm90(a);                                                \
  }

#endif

}  // namespace lpq::cuda
