// The ring of tiles of halves of kv_prefill_sm90.cuh, and the warpgroups that fill it.
#pragma once
#include "cuda/attention/kv_prefill/halves.cuh"
#include "cuda/attention/kv_prefill/rows.cuh"
#include "cuda/ptx/features.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

#if LPQ_HAS_WGMMA

// Barriers, two a tile of halves: it is full, it is empty.
template <class T>
struct HopperRings {
  using Shared = HopperShared<T>;
  static constexpr int kTiles = Shared::kTiles, kWords = Shared::kWords;
  // Registers of threads that multiply, and of workers.
  static constexpr int kMany = T::kSharers > 1   ? 200
                               : T::kDims == 256 ? 216
                                                 : 192,
                       kFew = Shared::kWorkers == 1 ? 504 - 2 * kMany : 256 - kMany;
  uint32_t queries;
  __device__ __forceinline__ uint32_t tile(int n) const {
    return queries + Shared::kQueries + static_cast<uint32_t>(n % kTiles * T::kTileBytes);
  }
  __device__ __forceinline__ uint32_t words(int n) const {
    const uint32_t first = queries + Shared::kWordsAt;
    if (Shared::kWorkers == 1) return first + static_cast<uint32_t>(n % kWords * Shared::kKeyStage);
    return first + static_cast<uint32_t>(n & 1 ? kWords * Shared::kKeyStage + (n >> 1) % kWords * Shared::kValueStage
                                               : (n >> 1) % kWords * Shared::kKeyStage);
  }
  __device__ __forceinline__ uint32_t full(int n) const {
    return queries + Shared::kBarriersAt + static_cast<uint32_t>(n % kTiles * 8);
  }
  __device__ __forceinline__ uint32_t empty(int n) const { return full(n) + 8 * kTiles; }
  __device__ __forceinline__ static int turn(int n) { return n / kTiles & 1; }
};

// Jobs are keys and values of tiles by turns; of two warpgroups one has all keys, one all values.
template <class T, int WORKER>
__device__ __forceinline__ void hopper_produce(const KvDecodeArgs& a, const PrefillOwn<T, kHopperRows<T>>& own,
                                               const PrefillWalk<T>& walk, const HopperRings<T>& rings) {
  using R = HopperRings<T>;
  constexpr int kWorkers = R::Shared::kWorkers;
  const int jobs = 2 * (walk.end - walk.begin);
  const auto fetch = [&](int job) {
    const int tile = walk.begin + (job >> 1);
    if (kWorkers == 2 ? WORKER : job & 1)
      prefill_fetch<T, true>(a, walk, own.sequence, own.head, tile, rings.words(job));
    else prefill_fetch<T, false>(a, walk, own.sequence, own.head, tile, rings.words(job));
    cp_async_commit();
  };
#pragma unroll
  for (int n = 0; n < R::kWords - 1; ++n) fetch(WORKER + n * kWorkers);
#pragma unroll 1
  for (int job = WORKER; job < jobs; job += kWorkers) {
    const int tile = walk.begin + (job >> 1);
    cp_async_wait<R::kWords - 2>();
    bar_sync(1 + WORKER, kPrefillWorkers);  // all copies have come, and the words before them have been read
    fetch(job + (R::kWords - 1) * kWorkers);
    if (job >= R::kTiles) mbarrier_wait_parity(rings.empty(job), R::turn(job) ^ 1);
    if (kWorkers == 2 ? WORKER : job & 1)
      prefill_halves<T, true>(a, walk, own.sequence, own.head, tile, rings.words(job), rings.tile(job));
    else prefill_halves<T, false>(a, walk, own.sequence, own.head, tile, rings.words(job), rings.tile(job));
    fence_proxy_async_shared();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(rings.full(job));
  }
  cp_async_wait<0>();
}

#endif

}  // namespace lpq::cuda
