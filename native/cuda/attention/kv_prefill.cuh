// Attention of many query tokens over a packed cache: the newest of each sequence, packed or in the tail, each of which
// sees tokens up to itself. A row is a query head of a query token, so that rows of a kv head share what is read. Words
// of a tile of tokens come to shared memory (cp.async, one tile ahead), become halves there, once for 64 rows; then S =
// Q Kᵀ and O = P V as in FlashAttention-2, 16 rows a warp. Tokens are split over blocks; the block that ends last joins
// them. This is the kernel for devices without wgmma; kv_prefill_sm90.cuh has the other.
//
// Q: (lane, reg) of operand A -> row lane / 4 + 8 (reg % 2), dim 2 (lane % 4) + 8 (reg / 2) and the next; K by
// ldmatrix, V by ldmatrix.trans as operand B, (lane, reg) -> k = 2 (lane % 4) + 8 reg and the next, n = lane / 4.
#pragma once
#include "cuda/attention/handed.cuh"
#include "cuda/attention/kv_prefill/halves.cuh"
#include "cuda/attention/kv_prefill/rows.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/warps.cuh"

namespace lpq::cuda {

template <class T>
__device__ __forceinline__ void kv_prefill(const KvDecodeArgs& a) {
  constexpr int D = T::kDims, N = T::kTokens, kChunks = D / 8, kOwn = T::kOwnDims, kRows = kPrefillRows<T>;
  static_assert(kPrefillShared<T> <= 99 << 10, "a block of 8.6 and 8.9 has 99 KiB");
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  // Warps side by side share rows, and have dims of their own.
  const int own_row = 16 * (warp / T::kSharers), sharer = warp % T::kSharers, first_chunk = sharer * (kOwn / 8);
  const PrefillOwn<T, kRows> own(a);
  const PrefillWalk<T> walk = own.walk(a);
  const PrefillScale scale(a.scale);
  const uint32_t queries = shared_address(dynamic_shared()), keys = queries + kRows * D * 2,
                 values = keys + T::kTileBytes, key_words = values + T::kTileBytes,
                 value_words = key_words + T::kKeyStage,
                 handed = value_words + T::kValueStage + static_cast<uint32_t>(lane * 16);
  prefill_fetch<T, false>(a, walk, own.sequence, own.head, walk.begin, key_words);
  prefill_fetch<T, true>(a, walk, own.sequence, own.head, walk.begin, value_words);
  cp_async_commit();
  for (int i = thread; i < kRows * kChunks; i += kPrefillWorkers) {
    st_shared_v4(queries + prefill_place<kRows>(i / kChunks, i % kChunks),
                 scale.queries(prefill_query(a, own, own.first_row + i / kChunks, i % kChunks)));
  }
  int sees[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) sees[c] = own.sees(walk, own.first_row + own_row + (lane >> 2) + 8 * c);
  const int least = own.sees(walk, own.first_row + own_row);
  PrefillState<kOwn> state;
#pragma unroll 1
  for (int tile = walk.begin; tile < walk.end; ++tile) {
    cp_async_wait<0>();
    __syncthreads();  // all copies have come, and the halves have been read
    prefill_halves<T, false>(a, walk, own.sequence, own.head, tile, key_words, keys);
    prefill_halves<T, true>(a, walk, own.sequence, own.head, tile, value_words, values);
    __syncthreads();
    prefill_fetch<T, false>(a, walk, own.sequence, own.head, tile + 1, key_words);
    prefill_fetch<T, true>(a, walk, own.sequence, own.head, tile + 1, value_words);
    cp_async_commit();
    float score[N / 8][4] = {};
#pragma unroll
    for (int kc = 0; kc < kOwn / 16; ++kc) {
      uint32_t q[4];
      ldmatrix_x4(q, queries + prefill_place<kRows>(own_row + (lane & 15), first_chunk + 2 * kc + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < N / 16; ++n) {
        uint32_t k[4];  // both halves of 16 dims of tokens 0 to 7, then of 8 to 15
        ldmatrix_x4(
            k, keys + prefill_place<N>(16 * n + (lane & 7) + 8 * (lane >> 4), first_chunk + 2 * kc + (lane >> 3 & 1)));
        mma_m16n8k16<false>(score[2 * n], q, k[0], k[1]);
        mma_m16n8k16<false>(score[2 * n + 1], q, k[2], k[3]);
      }
    }
    if constexpr (T::kSharers > 1) {
      constexpr int kApart = 512 * (N / 8);  // from warp to warp
      const auto four = [&](int i) -> float (&)[4] { return score[i]; };
      hand_scores<N / 8>(handed + static_cast<uint32_t>(warp * kApart), 512, four);
      bar_sync(1 + warp / 2, 64);
      add_scores<N / 8>(handed + static_cast<uint32_t>((warp ^ 1) * kApart), 512, four);
    }
    if (prefill_masks<T>(walk, tile, least)) prefill_mask<T>(walk, tile, sees, score);
    float shrink[2];
    if (prefill_softmax(scale.scale, score, state.most, state.total, shrink)) prefill_shrink<kOwn>(shrink, state.out);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint32_t p[4];
      prefill_weights(score, n, p);
#pragma unroll
      for (int m = 0; m < kOwn / 16; ++m) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, values + prefill_place<N>(16 * n + (lane & 15), first_chunk + 2 * m + (lane >> 4)));
        mma_m16n8k16<false>(state.out[2 * m], p, v[0], v[1]);
        mma_m16n8k16<false>(state.out[2 * m + 1], p, v[2], v[3]);
      }
    }
  }
  cp_async_wait<0>();
  prefill_store<T, kRows>(a, own, own_row, sharer * kOwn, state);
  if (a.splits > 1)
    prefill_join<T, kRows, kPrefillWorkers>(a, own, thread, reinterpret_cast<unsigned*>(dynamic_shared()),
                                            [] { __syncthreads(); });
}

#define LPQ_KV_PREFILL(keys, values, dims, form, name)                                             \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kPrefillWorkers)                         \
      lpq_kv_prefill_##name##_##dims(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {          \
    lpq::cuda::kv_prefill<lpq::cuda::PrefillTile<keys, values, dims, lpq::cuda::KvForm::form>>(a); \
  }

}  // namespace lpq::cuda
