// Attention of many query tokens over a packed cache: the newest of each sequence, packed or in the tail, each of which
// sees tokens up to itself. A row is a query head of a query token, so that rows of a kv head share what is read. Words
// of a tile of tokens come to shared memory (cp.async, one tile ahead), become halves there, once for 64 rows; then S =
// Q Kᵀ and O = P V as in FlashAttention-2, 16 rows a warp. Tokens are split over blocks; the block that ends last joins
// them. This is the kernel for devices without wgmma; kv_prefill_sm90.cuh has the other.
//
// Q: (lane, reg) of operand A -> row lane / 4 + 8 (reg % 2), dim 2 (lane % 4) + 8 (reg / 2) and the next; K by
// ldmatrix, V by ldmatrix.trans as operand B, (lane, reg) -> k = 2 (lane % 4) + 8 reg and the next, n = lane / 4.
#pragma once
#include "cuda/attention/kv_prefill/halves.cuh"
#include "cuda/attention/kv_prefill/rows.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"

namespace lpq::cuda {

template <class T>
__device__ __forceinline__ void kv_prefill(const KvDecodeArgs& a) {
  constexpr int D = T::kDims, N = T::kTokens, kChunks = D / 8;
  static_assert(kPrefillShared<T> <= 99 << 10, "a block of 8.6 and 8.9 has 99 KiB");
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const PrefillOwn<T, kPrefillRows> own(a);
  const PrefillWalk<T> walk = own.walk(a);
  const PrefillScale scale(a.scale);
  const uint32_t queries = shared_address(dynamic_shared()), keys = queries + kPrefillRows * D * 2,
                 values = keys + T::kTileBytes, key_words = values + T::kTileBytes,
                 value_words = key_words + T::kKeyStage;
  prefill_fetch<T, false>(a, walk, own.sequence, own.head, walk.begin, key_words);
  prefill_fetch<T, true>(a, walk, own.sequence, own.head, walk.begin, value_words);
  cp_async_commit();
  for (int i = thread; i < kPrefillRows * kChunks; i += kPrefillWorkers) {
    st_shared_v4(queries + prefill_place<kPrefillRows>(i / kChunks, i % kChunks),
                 scale.queries(prefill_query(a, own, own.first_row + i / kChunks, i % kChunks)));
  }
  int sees[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) sees[c] = own.sees(walk, own.first_row + 16 * warp + (lane >> 2) + 8 * c);
  const int least = own.sees(walk, own.first_row + 16 * warp);
  PrefillState<D> state;
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
    for (int kc = 0; kc < D / 16; ++kc) {
      uint32_t q[4];
      ldmatrix_x4(q, queries + prefill_place<kPrefillRows>(16 * warp + (lane & 15), 2 * kc + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < N / 16; ++n) {
        uint32_t k[4];  // both halves of 16 dims of tokens 0 to 7, then of 8 to 15
        ldmatrix_x4(k, keys + prefill_place<N>(16 * n + (lane & 7) + 8 * (lane >> 4), 2 * kc + (lane >> 3 & 1)));
        mma_m16n8k16<false>(score[2 * n], q, k[0], k[1]);
        mma_m16n8k16<false>(score[2 * n + 1], q, k[2], k[3]);
      }
    }
    if (prefill_masks<T>(walk, tile, least)) prefill_mask<T>(walk, tile, sees, score);
    float shrink[2];
    if (prefill_softmax(scale.scale, score, state.most, state.total, shrink)) prefill_shrink<D>(shrink, state.out);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint32_t p[4];
      prefill_weights(score, n, p);
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, values + prefill_place<N>(16 * n + (lane & 15), 2 * m + (lane >> 4)));
        mma_m16n8k16<false>(state.out[2 * m], p, v[0], v[1]);
        mma_m16n8k16<false>(state.out[2 * m + 1], p, v[2], v[3]);
      }
    }
  }
  cp_async_wait<0>();
  prefill_store<T, kPrefillRows>(a, own, 16 * warp, state);
  if (a.splits > 1)
    prefill_join<T, kPrefillRows, kPrefillWorkers>(a, own, thread, reinterpret_cast<unsigned*>(dynamic_shared()),
                                                   [] { __syncthreads(); });
}

#define LPQ_KV_PREFILL(keys, values, dims, form, name)                                             \
  extern "C" __global__ void __launch_bounds__(lpq::cuda::kPrefillWorkers)                         \
      lpq_kv_prefill_##name##_##dims(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {          \
    lpq::cuda::kv_prefill<lpq::cuda::PrefillTile<keys, values, dims, lpq::cuda::KvForm::form>>(a); \
  }

}  // namespace lpq::cuda
