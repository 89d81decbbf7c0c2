// Decode attention over packed keys and values (BitDecoding, section IV; TurboMind, section 4.2; formats/kv/spec.md has
// the bytes).
//
// Tokens are the rows of both products, queries of one kv head the 8 columns: S = K Qᵀ reads words of keys by ldmatrix
// as its operand A, O = Vᵀ P words of values by ldmatrix.trans. A word holds R codes, hence R operands: one LOP3 takes
// the two codes of a half2, as subnormal numbers that need no arithmetic. Scales never touch codes: those of keys by
// channel multiply Q, those by token multiply scores, those of values multiply P.
//
// A warp, or of heads of 512 dims a pair of warps, is alone from its first unit to its last: it copies units into its
// own part of shared memory (cp.async; keys of the unit that comes as soon as keys of one are read, then values), and
// has maxima, sums and outputs of its own, so that no warp waits for another's softmax. What warps of a block found is
// brought together at the end, and what blocks (splits of the tokens) found by the block that ends last. Sixteens of
// the exact tail go to the warps of all splits in turn, while their first copies are under way. The first copies of
// pages do not wait for the operation before where it leaves pages, table, lengths and tails alone.
#pragma once
#include "cuda/attention/kv_join.cuh"
#include "cuda/attention/kv_tail.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/x2.cuh"

namespace lpq::cuda {

// A length or a tail that is none is told, and counts as 0.
__device__ __forceinline__ int kv_checked(const KvDecodeArgs& a, int value, int most, int unit) {
  if (value >= 0 && value <= most && value % unit == 0) return value;
  *a.fault = 1;
  return 0;
}

// Blocks: split fastest, then tiles of kQueries queries, kv heads, sequences.
template <class T>
__device__ __forceinline__ void kv_decode(const KvDecodeArgs& a) {
  if (!a.early) griddepcontrol_wait_and_launch();
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5),
            warps = static_cast<int>(blockDim.x >> 5);
  // Of warps that share units: which pair, of how many.
  const int pair = warp / T::kSharers, pairs = warps / T::kSharers;
  int index = static_cast<int>(blockIdx.x);
  const int split = index % a.splits;
  index /= a.splits;
  const int tile = index % a.query_tiles, head = index / a.query_tiles % a.kv_heads,
            sequence = index / a.query_tiles / a.kv_heads;
  const int group = a.heads / a.kv_heads;
  const int length = kv_checked(a, a.lengths[sequence], a.table_pages * a.page_tokens, T::kInWords ? 1 : T::kTile);
  const int tail = kv_checked(a, a.tails[sequence], a.room, 1);
  KvQuery<T> q;
  const auto fetch_queries = [&] {
    const unsigned short* const all = a.q + (static_cast<long long>(sequence) * a.heads + head * group) * a.head_dims;
    const auto fetch = [&](int tile_of_columns, int kc, int half) {
      const int own = tile * T::kQueries + 8 * tile_of_columns + (lane >> 2),
                dim = kv_first_dim<T>() + kv_query_dim<T>(kc, half);
      const uint32_t x =
          own < group && dim < a.head_dims ? *reinterpret_cast<const uint32_t*>(all + own * a.head_dims + dim) : 0;
      return a.bf16_queries ? cvt_x2<false>(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)) : x;
    };
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
      for (int kc = 0; kc < T::kDims / 16; ++kc) q.held[n][kc] = make_uint2(fetch(n, kc, 0), fetch(n, kc, 1));
  };

  // Units of the sequence in runs, one a split, of which a warp, or a pair, takes every `pairs`-th.
  const int units = (length + T::kTile - 1) / T::kTile * T::kTileUnits, run = (units + a.splits - 1) / a.splits;
  const int begin = split * run, end = begin + run < units ? begin + run : units;
  const int* table = a.table + static_cast<long long>(sequence) * a.table_pages;
  const KvLane<T> unit(a, head, shared_address(dynamic_shared()) + static_cast<uint32_t>(warp * T::kStage));
  const int first = begin + pair;
#ifdef LPQ_KV_WAITING  // of the ablation in docs/internals/kernels/attention.md: a unit is copied when its turn comes
  constexpr bool waiting = true;
#else
  constexpr bool waiting = false;
#endif
  KvPlace place{};
  const auto fetch_keys = [&](bool there) {
    if (there) kv_check_page(a, place), kv_fetch_keys<T>(a, place, unit);
    cp_async_commit();
  };
  const auto fetch_values = [&](bool there) {
    if (there) kv_fetch_values<T>(a, place, unit);
    cp_async_commit();
  };
  if (first < end) place = kv_place<T>(a, table, first);
  fetch_keys(first < end && !waiting), fetch_values(first < end && !waiting);
  if (a.early) griddepcontrol_wait_and_launch();
  fetch_queries();
  KvState<T> state;
  // Of the tail the last warps of all splits take sixteens first: they have the fewest units.
  const int first_tail = 16 * ((a.splits - split) * pairs - 1 - pair);
  if (first_tail < tail) {
    for (int first = first_tail; first < tail; first += 16 * pairs * a.splits)
      kv_tail<T>(a, sequence, head, first, tail, q, state);
    kv_settle<T, false>(state);
  }
  float sums[T::kColumns][4] = {};  // of q, of turbomind alone
  if constexpr (T::kInWords) {
    constexpr uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
#pragma unroll
    for (int n = 0; n < T::kColumns; ++n)
#pragma unroll
      for (int kc = 0; kc < T::kDims / 16; ++kc) {
        const uint2 query = q(n, kc);
        mma_m16n8k16<false>(sums[n], ones, query.x, query.y);
      }
  }
  for (int n = first; n < end; n += pairs) {
    KvScores<T> score = {};
    if constexpr (waiting) {
      place = kv_place<T>(a, table, n);
      fetch_keys(true), fetch_values(true), cp_async_wait<0>();
    }
    const bool more = n + pairs < end && !waiting;
    if (more) place = kv_place<T>(a, table, n + pairs);
    cp_async_wait<1>();
    __syncwarp();  // all lanes' copies have come
    if constexpr (T::kInWords) kv_scores_words<T>(a, unit, q, sums, score);
    else if constexpr (T::kByToken) kv_scores_tokens<T>(a, unit, q, score);
    else kv_scores_channels<T>(a, unit, q, score);
    __syncwarp();  // all lanes have read the keys
    fetch_keys(more);
    if constexpr (T::kSharers > 1) kv_bring_together<T, T::kSteps>([&](int j) -> float (&)[4] { return score[j][0]; });
    const int here = length - n * T::kTokens;  // of turbomind; a unit of another form is full
    kv_weigh<T>(here, score, state);
    cp_async_wait<1>();
    __syncwarp();
    kv_add_values<T>(a, unit, here, score, state);
    __syncwarp();
    fetch_values(more);
  }
  cp_async_wait<0>();
  kv_settle<T, true>(state);
  kv_join<T>(a, state, sequence, head, tile, split);
}

#define LPQ_KV_DECODE(keys, values, dims, form, queries, name)                                         \
  extern "C" __global__ void __launch_bounds__(                                                        \
      32 * lpq::cuda::KvShape<keys, values, dims, lpq::cuda::KvForm::form, queries>::kMostWarps, 1)    \
      lpq_kv_decode_##name##_##dims##_##queries(const __grid_constant__ lpq::cuda::KvDecodeArgs a) {   \
    lpq::cuda::kv_decode<lpq::cuda::KvShape<keys, values, dims, lpq::cuda::KvForm::form, queries>>(a); \
  }

}  // namespace lpq::cuda
