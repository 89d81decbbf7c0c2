// Attention of the newest tokens of sequences over rows of keys and values that are kept as 16-bit floats (flash
// decoding: Dao et al. 2023).
//
// As in kv_decode.cuh tokens are the rows of both products and queries the 8 columns: S = K Qᵀ, O = Vᵀ P. A column is a
// pair of a new token and a query head of the kv head, so that the heads of a group share what is read. A warp takes
// every kWarps-th sixteen of tokens of its split through its own ring of shared memory, with maxima, sums and outputs
// of its own; warps of a block are brought together at the end, and splits by the block that ends last, in their order.
//
//   K, V in shared memory: (token, chunk of 8 dims) -> byte token * 2 DIMS + ((chunk ^ token % 8) << 4)
//   A of S, by ldmatrix:       (lane, reg) -> (token lane/4 + 8 (reg % 2), dim 16 step + 2 (lane % 4) + 8 (reg / 2))
//   A of O, by ldmatrix.trans: (lane, reg) -> (dim 16 step + lane/4 + 8 (reg % 2), token 2 (lane % 4) + 8 (reg / 2))
//   S, O: (lane, i) -> (row lane/4 + 8 (i / 2), column 2 (lane % 4) + i % 2)
#pragma once
#include "cuda/attention/cached/join.cuh"
#include "cuda/attention/cached/producer.cuh"
#include "cuda/attention/cached/products.cuh"
#include "cuda/ptx/griddepcontrol.cuh"
#include "cuda/types.cuh"

namespace lpq::cuda {

// At short contexts a warp passes here once or twice, and its instructions, most of which have to be fetched, are what
// it takes: so whatever is not per token is by whole words, columns are found once and told by a table, and what comes
// again is a loop.
template <class T, bool BF>
__device__ __forceinline__ void cached_attention(const CachedArgs& a) {
  bool waited = !a.early;
  const auto wait = [&] {
    if (!waited) griddepcontrol_wait_and_launch();
    waited = true;
  };
  if (waited) griddepcontrol_wait_and_launch();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const CachedOwn own(a);
  // Tokens before the first sequence or behind the last would be left as they are in y.
  const bool covers =
      (own.sequence > 0 || own.start == 0) && (own.sequence < a.sequences - 1 || own.start + own.fresh == a.tokens);
  if (!covers || own.start < 0 || own.fresh < 0 || own.start + own.fresh > a.tokens || own.total < own.fresh ||
      own.total > a.rows || own.slot < 0 || own.slot >= a.slots_count ||
      own.fresh * a.group > a.query_tiles * kCachedQueries) {
    wait();
    if (thread == 0) *a.fault = 1;
    return;
  }
  if (own.columns <= 0) return wait();
  unsigned char* const shared = dynamic_shared();
  CachedColumn* const table = reinterpret_cast<CachedColumn*>(shared + T::kTable);
  const CachedRun run(a, own);
  const uint32_t base = shared_address(shared);
  const CachedProducer<T> producer(a, own, run.end, base + static_cast<uint32_t>(warp * T::kStages * T::kStage));
  // The first copies are under way while queries come. The operation before may still write rows of new tokens.
  int next = run.begin + warp;
#pragma unroll 1
  for (int i = 0; i < T::kStages - 1; ++i) {
    if ((next + 1) * kCachedTokens > own.past()) wait();
    if (next < run.stop) producer.fetch(next, i);
    cp_async_commit();
    next += T::kWarps;
  }
  wait();
  uint32_t q[T::kDims / 16][2];
  cached_columns<T, BF>(a, own, base, table, q);
  const int seen[2] = {table[2 * t].token, table[2 * t + 1].token};
  __syncthreads();  // the stage is free again

  CachedState<T> state;
  if (a.sinks && own.split == 0 && warp == 0)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (seen[c] >= 0) {
        state.most[c] = load_any(a.sinks, a.sinks_type, table[2 * t + c].row % a.heads) * 1.44269504f;
        state.total[c] = g == 0 ? 1.0f : 0.0f;
      }
  int slot_of_ring = 0;
#pragma unroll 1
  for (int unit = run.begin + warp; unit < run.stop; unit += T::kWarps) {
    cp_async_wait<T::kStages - 2>();
    __syncwarp();  // all lanes' copies have come, and the stage before this one has been read
    if (next < run.stop) producer.fetch(next, slot_of_ring == 0 ? T::kStages - 1 : slot_of_ring - 1);
    cp_async_commit();
    next += T::kWarps;
    const uint32_t stage = producer.ring + static_cast<uint32_t>(slot_of_ring * T::kStage);
    slot_of_ring = slot_of_ring + 1 == T::kStages ? 0 : slot_of_ring + 1;
    float score[4] = {};
    cached_scores<T, BF>(a, stage, unit, q, seen, score);
    cached_softmax(state, score, unit == run.begin + warp && !a.sinks);
    cached_outputs<T, BF>(state, stage, score);
  }
  cp_async_wait<0>();
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) state.total[c] += __shfl_xor_sync(0xffffffffu, state.total[c], mask);
  __syncthreads();  // the rings are free
  float* const all = a.partial + static_cast<long long>(own.index) * a.splits * kCachedRecord<T::kDims>;
  cached_join_warps<T, BF>(a, own, state, reinterpret_cast<float*>(shared), table, all);
  if (a.splits == 1) return;
  unsigned* const last = reinterpret_cast<unsigned*>(shared + T::kTable + sizeof(CachedColumn) * kCachedQueries);
  if (!is_last_split(a.counters + own.index, last, a.splits)) return;
  cached_fixup<T, BF>(a, own.columns, table, all);
}

#define LPQ_CACHED(name, bf, dims)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * lpq::cuda::CachedShape<dims>::kWarps)     \
      lpq_cached_attention_##name##_##dims(const __grid_constant__ lpq::cuda::CachedArgs a) { \
    lpq::cuda::cached_attention<lpq::cuda::CachedShape<dims>, bf>(a);                         \
  }

}  // namespace lpq::cuda
