// cached_attention, cache_append and rope_append. With 16-bit rows products are of
// 16-bit numbers, q rounded after its scale, and the softmax is fp32; heads whose dims are no multiple of 8, f32 rows,
// and tensors that start at no multiple of 16 bytes take a plainer kernel, fp32 throughout.
#include <cmath>

#include "cuda/attention/cached_shape.h"
#include "cuda/attention/rope_append.h"
#include "cuda/launch.h"
#include "ops/attention.h"

namespace lpq::cuda {
namespace {

struct Facts {
  int warps, shared, record;
};
Facts facts_of(int dims) {
  if (dims == 64) return {CachedShape<64>::kWarps, CachedShape<64>::kShared, kCachedRecord<64>};
  if (dims == 128) return {CachedShape<128>::kWarps, CachedShape<128>::kShared, kCachedRecord<128>};
  return {CachedShape<256>::kWarps, CachedShape<256>::kShared, kCachedRecord<256>};
}

void require_head_dims(const ops::AttentionShape& of) {
  require(of.head_dim <= kMostHeadDim && of.value_dim <= kMostHeadDim, "headDim and valueDim are at most 256");
}

uint32_t* fault_of(CudaExec& exec) {
  return exec.fault("LPQ_NATIVE_ARGUMENT",
                    "starts, slots and totals do not fit the cache, or a sequence has more new tokens than most says");
}

// Splits of the tokens that end soonest: rounds of blocks over the device, two a multiprocessor, each of a run of units
// and what a block costs besides.
int64_t splits_for(int64_t tiles, int64_t units, int warps, int multiprocessors) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t splits = 1; splits <= 256 && splits * warps <= std::max<int64_t>(units, warps); ++splits) {
    const int64_t cost = div_up(tiles * splits, 2 * multiprocessors) * (div_up(div_up(units, splits), warps) + 8);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

void cached_attention(Call& call, CudaExec& exec) {
  const ops::CachedAttention of(call);
  const Tensor &q = of.q, &keys = of.keys, &values = of.values, &y = of.y;
  const int64_t most = of.most, longest = of.longest;
  require_dtype(keys, "keys", {y.dtype});
  CachedArgs a{};
  a.heads = static_cast<int>(of.shape.heads), a.kv_heads = static_cast<int>(of.shape.kv_heads);
  a.head_dim = static_cast<int>(of.shape.head_dim), a.value_dim = static_cast<int>(of.shape.value_dim);
  a.window = static_cast<int>(of.shape.window);
  const float scale = of.shape.scale, cap = of.shape.cap, log2e = 1.4426950408889634f;
  require_head_dims(of.shape);
  a.tokens = static_cast<int>(q.dim(0)), a.sequences = static_cast<int>(of.step.sequences);
  a.sinks = raw_of(of.sinks), a.sinks_type = type_of(of.sinks);
  a.starts = of.step.starts.data<int32_t>(), a.slots = of.step.slots.data<int32_t>();
  a.totals = of.step.totals.data<int32_t>();
  if (a.tokens == 0) return;
  require(a.sequences > 0, "starts does not run from 0 to the number of tokens, " + std::to_string(a.tokens));
  require(most > 0, "a sequence has more tokens than most and longest say");
  a.slots_count = static_cast<int>(keys.dim(0)), a.rows = static_cast<int>(keys.dim(1));
  uint32_t* const fault = fault_of(exec);
  bool sixteens = a.head_dim % 8 == 0 && a.value_dim % 8 == 0;
  for (const Tensor* tensor : {&q, &keys, &values, &y})
    sixteens = sixteens && reinterpret_cast<uintptr_t>(tensor->raw()) % 16 == 0;
  if (y.dtype == DType::f32 || !sixteens) {
    const void *query = q.raw(), *k = keys.raw(), *v = values.raw();
    void* out = y.raw();
    exec.launch("lpq_cached_attention_plain" + suffix(y), {div_up(static_cast<int64_t>(a.tokens) * a.heads, 8)},
                {32, 8}, 0, query, type_index(q.dtype), k, v, out, a.starts, a.slots, a.totals, a.sequences, a.tokens,
                a.slots_count, a.rows, a.heads, a.kv_heads, a.head_dim, a.value_dim, scale, a.window, cap, a.sinks,
                a.sinks_type, fault);
    return;
  }
  a.q = q.raw(), a.wide_q = q.dtype == DType::f32;
  a.keys = keys.data<uint16_t>(), a.values = values.data<uint16_t>(), a.y = y.data<uint16_t>();
  a.fault = fault;
  a.group = a.heads / a.kv_heads, a.scale = scale * log2e, a.cap = cap * log2e;
  a.query_tiles = static_cast<int>(div_up(most * a.group, kCachedQueries));
  const int wide = std::max(a.head_dim, a.value_dim), dims = wide <= 64 ? 64 : wide <= 128 ? 128 : 256;
  const Facts facts = facts_of(dims);
  require(facts.shared <= exec.device().shared_per_block,
          "the device has less than " + std::to_string(facts.shared) + " bytes of shared memory a block");
  const int64_t tiles = static_cast<int64_t>(a.sequences) * a.kv_heads * a.query_tiles,
                seen = a.window > 0 ? std::min<int64_t>(longest, a.window + most) : longest;
  const int64_t splits =
      of.splits > 0 ? of.splits
                    : splits_for(tiles, div_up(seen, kCachedTokens), facts.warps, exec.device().multiprocessors);
  a.splits = static_cast<int>(splits);
  Scratch partial = exec.scratch(static_cast<size_t>(splits > 1 ? tiles * splits * facts.record * 4 : 16));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(tiles));
  a.early = exec.follows_untouched_cache(keys, true) && exec.follows_untouched_cache(values, true) &&
            exec.follows_untouched_cache(of.step.starts) && exec.follows_untouched_cache(of.step.slots) &&
            exec.follows_untouched_cache(of.step.totals);
  exec.launch_after("lpq_cached_attention" + suffix(y) + "_" + std::to_string(dims), Dim3(tiles * splits),
                    Dim3(32 * facts.warps), static_cast<unsigned>(facts.shared), a);
  exec.wrote(y);
}
LPQ_CUDA_OP(cached_attention, "cached_attention");

// The first of a matrix's columns, and how far apart its rows are.
const void* columns(const Tensor& matrix, const Columns& of) {
  return matrix.raw() + of.first * static_cast<int64_t>(dtype_bytes(matrix.dtype));
}

void cache_append(Call& call, CudaExec& exec) {
  const ops::CacheAppend a(call);
  const Tensor &k = a.k, &v = a.v, &keys = a.keys, &values = a.values;
  const int tokens = static_cast<int>(k.dim(0)), slots = static_cast<int>(keys.dim(0)),
            rows = static_cast<int>(keys.dim(1)), sequences = static_cast<int>(a.step.sequences);
  if (tokens == 0 || sequences == 0)
    return require(tokens == 0, "starts does not run to the number of tokens, " + std::to_string(tokens));
  const void *from_k = columns(k, a.of_k), *from_v = columns(v, a.of_v);
  const long long k_pitch = a.of_k.pitch, v_pitch = a.of_v.pitch;
  void *to_k = keys.raw(), *to_v = values.raw();
  exec.launch("lpq_cache_append" + suffix(keys), {tokens}, {256}, 0, from_k, from_v, type_index(k.dtype), k_pitch,
              v_pitch, to_k, to_v, a.step.starts.data<int32_t>(), a.step.slots.data<int32_t>(),
              a.step.totals.data<int32_t>(), sequences, tokens, slots, rows, static_cast<int>(keys.dim(2)),
              static_cast<int>(values.dim(2)), fault_of(exec));
}
LPQ_CUDA_OP(cache_append, "cache_append");

void rope_append(Call& call, CudaExec& exec) {
  const ops::RopeAppend of(call);
  const Tensor &q = of.q, &k = of.k, &v = of.v, &y = of.y, &keys = of.keys, &values = of.values;
  const int64_t most = std::max(of.shape.head_dim, of.shape.value_dim);
  require(most <= kMostWideHeadDim, "headDim and valueDim are at most " + std::to_string(kMostWideHeadDim));
  RopeAppendArgs a{};
  a.heads = static_cast<int>(of.shape.heads), a.kv_heads = static_cast<int>(of.shape.kv_heads);
  a.head_dim = static_cast<int>(of.shape.head_dim), a.value_dim = static_cast<int>(of.shape.value_dim);
  a.q_norm = raw_of(of.q_norm), a.k_norm = raw_of(of.k_norm), a.q_norm_type = type_of(of.q_norm),
  a.k_norm_type = type_of(of.k_norm);
  a.eps = static_cast<float>(of.eps), a.offset = of.offset;
  if (const ops::Rotation& turn = of.rotation; turn.cos) {
    a.rotary = static_cast<int>(turn.rotary), a.halves = turn.halves, a.places = turn.cos->dim(0);
    a.cosines = turn.cos->data<float>(), a.sines = turn.sin->data<float>();
    a.positions = turn.positions->data<int32_t>();
  }
  a.tokens = static_cast<int>(q.dim(0)), a.sequences = static_cast<int>(of.step.sequences);
  if (a.tokens == 0 || a.sequences == 0)
    return require(a.tokens == 0, "starts does not run to the number of tokens, " + std::to_string(a.tokens));
  a.q = columns(q, of.of_q), a.k = columns(k, of.of_k), a.v = columns(v, of.of_v), a.y = y.raw(), a.keys = keys.raw(),
  a.values = values.raw();
  a.q_pitch = of.of_q.pitch, a.k_pitch = of.of_k.pitch, a.v_pitch = of.of_v.pitch;
  a.starts = of.step.starts.data<int32_t>(), a.slots = of.step.slots.data<int32_t>();
  a.totals = of.step.totals.data<int32_t>();
  a.x_type = type_index(q.dtype), a.y_type = type_index(y.dtype);
  a.slots_count = static_cast<int>(keys.dim(0)), a.rows = static_cast<int>(keys.dim(1));
  a.fault = fault_of(exec);
  a.outside = exec.fault("LPQ_NATIVE_ARGUMENT", "a position lies outside the table of " + std::to_string(a.places));
  exec.launch_through((most > kMostHeadDim ? "lpq_rope_append_wide" : "lpq_rope_append") + suffix(keys),
                      {a.tokens * div_up(a.heads + 2 * a.kv_heads, kAppendWarps)}, {32 * kAppendWarps}, 0, a);
  exec.wrote(y);
  exec.wrote_new_rows(keys, values);
}
LPQ_CUDA_OP(rope_append, "rope_append");

}  // namespace
}  // namespace lpq::cuda
