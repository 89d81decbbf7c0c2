// Attention of many query tokens over a packed cache by wgmma. A row is a query head of a query token; a block takes
// 128 rows of a kv head, 64 a warpgroup, and a split of the tokens that they see. A third warpgroup brings words of
// tiles to shared memory (cp.async, two tiles of keys or values ahead), makes them halves, and hands those over in a
// ring: keys and values of a tile by turns. Of heads of 512 dims both share 64 rows, and have 256 dims each. The others
// multiply: S = Q Kᵀ, both operands in shared memory; O = P V, P from the registers that S came in, V by rows of
// tokens. The block that ends last joins the splits in their order.
//
//   Q in shared memory   [warpgroup][64 dims][64 rows][128 bytes], swizzled (prefill_place): its rows, or its dims
//   K, V                 [64 dims][tokens][128 bytes], swizzled
//   S, O                 (lane, [n][i]) -> row 16 warp + lane / 4 + 8 (i / 2), column 8 n + 2 (lane % 4) + i % 2
#pragma once
#include "cuda/attention/handed.cuh"
#include "cuda/attention/kv_prefill/ring.cuh"
#include "cuda/attention/kv_prefill/rows.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Brings what both warpgroups found of the same rows together, in the first; `to`: shared memory that was read.
template <int DIMS>
__device__ __forceinline__ void hopper_merge(uint32_t to, PrefillState<DIMS>& state) {
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const auto at = [&](int i) { return to + static_cast<uint32_t>((i * 128 + thread) * 16); };
  const auto word = [](float f) { return __float_as_uint(f); };
  bar_sync(5, kHopperMultipliers);
  if (threadIdx.x >= 128) {
#pragma unroll
    for (int m = 0; m < DIMS / 8; ++m)
      st_shared_v4(at(m), make_uint4(word(state.out[m][0]), word(state.out[m][1]), word(state.out[m][2]),
                                     word(state.out[m][3])));
    st_shared_v4(at(DIMS / 8),
                 make_uint4(word(state.most[0]), word(state.most[1]), word(state.total[0]), word(state.total[1])));
  }
  bar_sync(5, kHopperMultipliers);
  if (threadIdx.x >= 128) return;
  const float4 other = ld_shared_f4(at(DIMS / 8));
  const float most[2] = {other.x, other.y}, total[2] = {other.z, other.w};
  float own_share[2], share[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float peak = fmaxf(state.most[c], most[c]), base = peak == -INFINITY ? 0 : peak;
    own_share[c] = ex2_approx(state.most[c] - base), share[c] = ex2_approx(most[c] - base);
    state.most[c] = peak, state.total[c] = __fmaf_rn(total[c], share[c], state.total[c] * own_share[c]);
  }
#pragma unroll
  for (int m = 0; m < DIMS / 8; ++m) {
    const float4 four = ld_shared_f4(at(m));
    const float add[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[m][i] = __fmaf_rn(add[i], share[i >> 1], state.out[m][i] * own_share[i >> 1]);
  }
}

// Scores of a tile: of this warpgroup's dims, and then of all.
template <class T>
__device__ __forceinline__ void hopper_bring_together(const HopperRings<T>& rings, int warpgroup,
                                                      float (&score)[T::kTokens / 8][4]) {
  constexpr int kCount = T::kTokens / 8, kApart = HopperShared<T>::kHanded / 2;  // from warpgroup to warpgroup
  const uint32_t first = rings.queries + HopperShared<T>::kHandedAt + (threadIdx.x & 127) * 16;
  const auto four = [&](int i) -> float (&)[4] { return score[i]; };
  bar_sync(5, kHopperMultipliers);  // the other has added what was there before
  hand_scores<kCount>(first + static_cast<uint32_t>(warpgroup * kApart), 2048, four);
  bar_sync(5, kHopperMultipliers);
  add_scores<kCount>(first + static_cast<uint32_t>((warpgroup ^ 1) * kApart), 2048, four);
}

// Of 64 rows or fewer both warpgroups have the same, and tiles by turns. The keys of a warpgroup's next tile come four
// jobs later, and are multiplied before the values of this one: a ring of fewer tiles has no room for them.
template <class T>
__device__ __forceinline__ bool hopper_turns(const PrefillOwn<T, kHopperRows<T>>& own) {
  return HopperRings<T>::kTiles >= 4 && own.rows - own.first_row <= 64;
}

template <class T>
__device__ __forceinline__ void hopper_multiply(const KvDecodeArgs& a, const PrefillOwn<T, kHopperRows<T>>& own,
                                                const PrefillWalk<T>& walk, const HopperRings<T>& rings) {
  constexpr int D = T::kOwnDims, N = T::kTokens, kChunks = D / 8;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  // Known to be the same in a warp: products that lanes could have left are done one by one.
  const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0), warpgroup = warp >> 2;
  const bool turns = hopper_turns<T>(own);
  // Warpgroups that share rows have dims of their own: blocks of 64 in shared memory.
  constexpr bool kShared = T::kSharers > 1;
  const int sharer = kShared ? warpgroup : 0;
  const uint32_t first_block = static_cast<uint32_t>(sharer * (D / 64) * N * 128);
  const int own_row = (turns || kShared ? 0 : 64 * warpgroup) + 16 * (warp & 3),
            first_row = own.first_row + own_row - 16 * (warp & 3);
  const PrefillScale scale(a.scale);
  const uint32_t queries = rings.queries + static_cast<uint32_t>(warpgroup * 64 * D * 2);
#pragma unroll 4
  for (int i = thread & 127; i < 64 * kChunks; i += 128) {
    st_shared_v4(queries + prefill_place<64>(i / kChunks, i % kChunks),
                 scale.queries(prefill_query(a, own, first_row + i / kChunks, sharer * kChunks + i % kChunks)));
  }
  fence_proxy_async_shared();
  bar_sync(3 + warpgroup, 128);
  int sees[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) sees[c] = own.sees(walk, own.first_row + own_row + (lane >> 2) + 8 * c);
  const int least = own.sees(walk, own.first_row + own_row);
  PrefillState<D> state;
  const uint64_t q = wgmma_descriptor(queries);
  const auto release = [&](int job) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(rings.empty(job));
  };
  float score[N / 8][4];
  const auto multiply_keys = [&](int job) {
    const uint64_t k = wgmma_descriptor(rings.tile(job) + first_block);
#pragma unroll
    for (int kc = 0; kc < D / 16; ++kc)
      wgmma_k16<false>(score, q + static_cast<uint64_t>((kc / 4 * 64 * 128 >> 4) + kc % 4 * 2),
                       k + static_cast<uint64_t>((kc / 4 * N * 128 >> 4) + kc % 4 * 2), kc > 0);
    wgmma_commit();
  };
  // This warpgroup's tiles, and jobs of theirs: keys, the values before.
  const int from = turns ? warpgroup : 0, step = turns ? 2 : 1, count = walk.end - walk.begin - from,
            tiles = turns ? (count + 1) >> 1 : count;
  const auto job = [&](int i) { return 2 * (from + step * i); };
  if (count > 0) {
    uint32_t p[N / 16][4];
    float shrink[2];
    const auto weigh = [&](int tile) {
      if constexpr (kShared) hopper_bring_together<T>(rings, warpgroup, score);
      if (prefill_masks<T>(walk, tile, least)) prefill_mask<T>(walk, tile, sees, score);
      return prefill_softmax(scale.scale, score, state.most, state.total, shrink);
    };
    const auto weights = [&] {
#pragma unroll
      for (int n = 0; n < N / 16; ++n) prefill_weights(score, n, p[n]);
    };
    const auto multiply_values = [&](int job) {
      const uint64_t v = wgmma_descriptor_rows(rings.tile(job) + first_block, N * 128);
#pragma unroll
      for (int n = 0; n < N / 16; ++n) wgmma_k16_rows<false>(state.out, p[n], v + static_cast<uint64_t>(n * 128), true);
      wgmma_commit();
    };
    // Sums are read behind waits only.
    const auto keep = [](auto& sums) {
#pragma unroll
      for (auto& each : sums)
#pragma unroll
        for (float& sum : each) keep_here(sum);
    };
    const auto wait = [&](int of) { mbarrier_wait_parity(rings.full(of), HopperRings<T>::turn(of)); };
    // Scores of a tile are multiplied before values of the one before it.
    wait(job(0));
    wgmma_fence();
    multiply_keys(job(0));
    wgmma_wait<0>();
    keep(score);
    release(job(0));
    weigh(walk.begin + from);
    weights();
#pragma unroll 1
    for (int i = 1; i < tiles; ++i) {
      wait(job(i));
      wgmma_fence();
      multiply_keys(job(i));
      wait(job(i - 1) + 1);
      multiply_values(job(i - 1) + 1);
      wgmma_wait<1>();
      keep(score);
      release(job(i));
      const bool raised = weigh(walk.begin + from + step * i);
      wgmma_wait<0>();
      keep(state.out);
      release(job(i - 1) + 1);
      if (raised) prefill_shrink<D>(shrink, state.out);
      weights();
    }
    wait(job(tiles - 1) + 1);
    wgmma_fence();
    multiply_values(job(tiles - 1) + 1);
    wgmma_wait<0>();
    keep(state.out);
    release(job(tiles - 1) + 1);
  }
  if (turns) hopper_merge<D>(rings.tile(0), state);
  if (!turns || warpgroup == 0) prefill_store<T, kHopperRows<T>>(a, own, own_row, sharer * D, state);
  if (a.splits > 1)
    prefill_join<T, kHopperRows<T>, kHopperMultipliers>(
        a, own, thread, reinterpret_cast<unsigned*>(dynamic_shared() + HopperShared<T>::kFlagAt),
        [] { bar_sync(5, kHopperMultipliers); });
}

template <class T>
__device__ __forceinline__ void kv_prefill_sm90(const KvDecodeArgs& a) {
  using R = HopperRings<T>;
  const R rings{shared_address(dynamic_shared())};
  const PrefillOwn<T, kHopperRows<T>> own(a);
  const PrefillWalk<T> walk = own.walk(a);
  if (threadIdx.x == 0) {
    const int multipliers = hopper_turns<T>(own) ? 4 : 8;  // warps
    for (int n = 0; n < R::kTiles; ++n) mbarrier_init(rings.full(n), 4), mbarrier_init(rings.empty(n), multipliers);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kHopperMultipliers) {
    setmaxnreg_dec<R::kFew>();
    if (R::Shared::kWorkers == 1 || threadIdx.x < kHopperMultipliers + kPrefillWorkers)
      hopper_produce<T, 0>(a, own, walk, rings);
    else hopper_produce<T, R::Shared::kWorkers - 1>(a, own, walk, rings);
  } else {
    setmaxnreg_inc<R::kMany>();
    hopper_multiply<T>(a, own, walk, rings);
  }
}

#endif

#if LPQ_HAS_WGMMA
#define LPQ_KV_PREFILL_SM90(keys, values, dims, form, name)                                                     \
  extern "C" __global__ void __launch_bounds__(                                                                 \
      lpq::cuda::HopperShared<lpq::cuda::HopperTile<keys, values, dims, lpq::cuda::KvForm::form>>::kThreads, 1) \
      lpq_kv_prefill_sm90_##name##_##dims(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {                  \
    lpq::cuda::kv_prefill_sm90<lpq::cuda::HopperTile<keys, values, dims, lpq::cuda::KvForm::form>>(a);          \
  }
#else
#define LPQ_KV_PREFILL_SM90(keys, values, dims, form, name)
#endif

}  // namespace lpq::cuda
