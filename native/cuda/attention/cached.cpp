// cached_attention, cache_append and rope_append: contracts in native/cache-ops.ts. With 16-bit rows products are of
// 16-bit numbers, q rounded after its scale, and the softmax is fp32; heads whose dims are no multiple of 8, f32 rows,
// and tensors that start at no multiple of 16 bytes take a plainer kernel, fp32 throughout.
#include <cmath>

#include "cuda/attention/cached_shape.h"
#include "cuda/attention/rope_append.h"
#include "cuda/launch.h"

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

struct Places {
  const int32_t *starts, *slots, *totals;
  int sequences;
};
Places places(Call& call, size_t first) {
  const Tensor &starts = call.input(first), &slots = call.input(first + 1), &totals = call.input(first + 2);
  require_tensor(starts, "starts", DType::i32, {-1});
  const int64_t sequences = starts.dim(0) - 1;
  require(sequences >= 0, "starts is empty");
  require_tensor(slots, "slots", DType::i32, {sequences});
  require_tensor(totals, "totals", DType::i32, {sequences});
  return {starts.data<int32_t>(), slots.data<int32_t>(), totals.data<int32_t>(), static_cast<int>(sequences)};
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
  const Tensor &q = call.input(0), &keys = call.input(1), &values = call.input(2), &y = call.output(0);
  const Params& p = call.params;
  const auto integer = [&](const char* name) { return static_cast<int>(p.integer(name)); };
  CachedArgs a{};
  a.heads = integer("heads"), a.kv_heads = integer("kvHeads"), a.head_dim = integer("headDim");
  a.value_dim = static_cast<int>(p.integer("valueDim", a.head_dim)),
  a.window = static_cast<int>(p.integer("window", 0));
  const float scale = static_cast<float>(p.number("scale")), cap = static_cast<float>(p.number("softCap", 0.0)),
              log2e = 1.4426950408889634f;
  const int64_t most = p.integer("most"), longest = p.integer("longest");
  require(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0,
          "heads (" + std::to_string(a.heads) + ") is not a multiple of kvHeads (" + std::to_string(a.kv_heads) + ")");
  require(a.head_dim > 0 && a.value_dim > 0 && a.head_dim <= 256 && a.value_dim <= 256,
          "headDim and valueDim must lie between 1 and 256");
  require(a.window >= 0 && cap >= 0, "window is " + std::to_string(a.window) + " and softCap " + std::to_string(cap));
  require(most >= 0 && longest >= 0, "most is " + std::to_string(most) + " and longest " + std::to_string(longest));
  require_dtype(y, "y", kActivations);
  require_dtype(q, "q", {DType::f32, y.dtype});
  require_shape(q, "q", {-1, static_cast<int64_t>(a.heads) * a.head_dim});
  a.tokens = static_cast<int>(q.dim(0));
  require_shape(y, "y", {a.tokens, static_cast<int64_t>(a.heads) * a.value_dim});
  require(a.tokens == 0 || y.raw() != q.raw(), "y must not be q");
  require_tensor(keys, "keys", y.dtype, {-1, -1, static_cast<int64_t>(a.kv_heads) * a.head_dim});
  require_tensor(values, "values", y.dtype, {keys.dim(0), keys.dim(1), static_cast<int64_t>(a.kv_heads) * a.value_dim});
  const Places at = places(call, 3);
  if (call.in.size() > 6) {
    require_dtype(call.input(6), "sinks", kActivations);
    require_shape(call.input(6), "sinks", {a.heads});
    a.sinks = call.input(6).raw(), a.sinks_type = type_index(call.input(6).dtype);
  }
  if (a.tokens == 0) return;
  require(at.sequences > 0, "starts does not run from 0 to the number of tokens, " + std::to_string(a.tokens));
  require(most > 0, "a sequence has more tokens than most and longest say");
  a.slots_count = static_cast<int>(keys.dim(0)), a.rows = static_cast<int>(keys.dim(1)), a.sequences = at.sequences;
  uint32_t* const fault = fault_of(exec);
  bool sixteens = a.head_dim % 8 == 0 && a.value_dim % 8 == 0;
  for (const Tensor* tensor : {&q, &keys, &values, &y})
    sixteens = sixteens && reinterpret_cast<uintptr_t>(tensor->raw()) % 16 == 0;
  if (y.dtype == DType::f32 || !sixteens) {
    p.integer("splits", 1);  // no effect here
    const void *query = q.raw(), *k = keys.raw(), *v = values.raw();
    void* out = y.raw();
    exec.launch("lpq_cached_attention_plain" + suffix(y), {div_up(static_cast<int64_t>(a.tokens) * a.heads, 8)},
                {32, 8}, 0, query, type_index(q.dtype), k, v, out, at.starts, at.slots, at.totals, at.sequences,
                a.tokens, a.slots_count, a.rows, a.heads, a.kv_heads, a.head_dim, a.value_dim, scale, a.window, cap,
                a.sinks, a.sinks_type, fault);
    return;
  }
  a.q = q.raw(), a.wide_q = q.dtype == DType::f32;
  a.keys = keys.data<uint16_t>(), a.values = values.data<uint16_t>(), a.y = y.data<uint16_t>();
  a.starts = at.starts, a.slots = at.slots, a.totals = at.totals, a.fault = fault;
  a.group = a.heads / a.kv_heads, a.scale = scale * log2e, a.cap = cap * log2e;
  a.query_tiles = static_cast<int>(div_up(most * a.group, kCachedQueries));
  const int wide = std::max(a.head_dim, a.value_dim), dims = wide <= 64 ? 64 : wide <= 128 ? 128 : 256;
  const Facts facts = facts_of(dims);
  require(facts.shared <= exec.device().shared_per_block,
          "the device has less than " + std::to_string(facts.shared) + " bytes of shared memory a block");
  const int64_t tiles = static_cast<int64_t>(a.sequences) * a.kv_heads * a.query_tiles,
                seen = a.window > 0 ? std::min<int64_t>(longest, a.window + most) : longest;
  const int64_t splits =
      p.integer("splits", splits_for(tiles, div_up(seen, kCachedTokens), facts.warps, exec.device().multiprocessors));
  require(splits >= 1 && splits <= kCachedSplits, "splits is not 1 to 1024");
  a.splits = static_cast<int>(splits);
  Scratch partial = exec.scratch(static_cast<size_t>(splits > 1 ? tiles * splits * facts.record * 4 : 16));
  a.partial = partial.as<float>(), a.counters = exec.counters(static_cast<size_t>(tiles));
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
  const Tensor &k = call.input(0), &v = call.input(1), &keys = call.output(0), &values = call.output(1);
  require_dtype(k, "k", kActivations);
  require_shape(k, "k", {-1, -1});
  require_tensor(v, "v", k.dtype, {k.dim(0), -1});
  require_dtype(keys, "keys", kActivations);
  const bool some = call.params.integer("kFirst", -1) >= 0, other = call.params.integer("vFirst", -1) >= 0;
  require_shape(keys, "keys", {-1, -1, some ? -1 : k.dim(1)});
  require_tensor(values, "values", keys.dtype, {keys.dim(0), keys.dim(1), other ? -1 : v.dim(1)});
  const Columns of_k = columns_of(call.params, "kFirst", k, "k", keys.dim(2)),
                of_v = columns_of(call.params, "vFirst", v, "v", values.dim(2));
  const Places at = places(call, 2);
  const int tokens = static_cast<int>(k.dim(0)), slots = static_cast<int>(keys.dim(0)),
            rows = static_cast<int>(keys.dim(1));
  if (tokens == 0 || at.sequences == 0)
    return require(tokens == 0, "starts does not run to the number of tokens, " + std::to_string(tokens));
  const void *from_k = columns(k, of_k), *from_v = columns(v, of_v);
  const long long k_pitch = of_k.pitch, v_pitch = of_v.pitch;
  void *to_k = keys.raw(), *to_v = values.raw();
  exec.launch("lpq_cache_append" + suffix(keys), {tokens}, {256}, 0, from_k, from_v, type_index(k.dtype), k_pitch,
              v_pitch, to_k, to_v, at.starts, at.slots, at.totals, at.sequences, tokens, slots, rows,
              static_cast<int>(keys.dim(2)), static_cast<int>(values.dim(2)), fault_of(exec));
}
LPQ_CUDA_OP(cache_append, "cache_append");

void rope_append(Call& call, CudaExec& exec) {
  const Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2), &y = call.output(0), &keys = call.output(1),
               &values = call.output(2);
  const Params& p = call.params;
  const auto integer = [&](const char* name) { return static_cast<int>(p.integer(name)); };
  RopeAppendArgs a{};
  a.heads = integer("heads"), a.kv_heads = integer("kvHeads"), a.head_dim = integer("headDim");
  a.value_dim = static_cast<int>(p.integer("valueDim", a.head_dim));
  require(a.heads > 0 && a.kv_heads > 0, "heads and kvHeads must be positive");
  require(a.head_dim > 0 && a.value_dim > 0 && a.head_dim <= kMostHeadDim && a.value_dim <= kMostHeadDim,
          "headDim and valueDim must lie between 1 and 256");
  require_dtype(q, "q", kActivations);
  const int64_t heads_wide = static_cast<int64_t>(a.heads) * a.head_dim,
                keys_wide = static_cast<int64_t>(a.kv_heads) * a.head_dim;
  const int64_t values_wide = static_cast<int64_t>(a.kv_heads) * a.value_dim;
  const Columns of_q = columns_of(p, "qFirst", q, "q", heads_wide), of_k = columns_of(p, "kFirst", k, "k", keys_wide),
                of_v = columns_of(p, "vFirst", v, "v", values_wide);
  require_tensor(k, "k", q.dtype, {q.dim(0), -1});
  require_tensor(v, "v", q.dtype, {q.dim(0), -1});
  require_dtype(y, "y", kActivations);
  require_shape(y, "y", {q.dim(0), heads_wide});
  require(q.dim(0) == 0 || y.raw() != q.raw() || (y.dtype == q.dtype && of_q.pitch == heads_wide),
          "y may be q where that has no other columns, and its dtype");
  require_dtype(keys, "keys", kActivations);
  require_shape(keys, "keys", {-1, -1, keys_wide});
  require_tensor(values, "values", keys.dtype, {keys.dim(0), keys.dim(1), values_wide});
  const Places at = places(call, 3);
  if (call.in.size() == 8 || call.in.size() == 11) {
    // The norms' weights come last.
    const Tensor &q_norm = call.input(call.in.size() - 2), &k_norm = call.input(call.in.size() - 1);
    for (const auto& [norm, name] : {std::pair{&q_norm, "the norm of q"}, {&k_norm, "the norm of k"}}) {
      require_dtype(*norm, name, kActivations);
      require_shape(*norm, name, {a.head_dim});
    }
    a.q_norm = q_norm.raw(), a.k_norm = k_norm.raw(), a.q_norm_type = type_index(q_norm.dtype),
    a.k_norm_type = type_index(k_norm.dtype);
    a.eps = static_cast<float>(p.number("eps")), a.offset = static_cast<float>(p.number("offset", 0.0));
  }
  if (call.in.size() > 8) {
    const Tensor &cosines = call.input(6), &sines = call.input(7), &positions = call.input(8);
    a.rotary = integer("rotary");
    const std::string& style = p.text("style");
    require(a.rotary >= 0 && a.rotary <= a.head_dim && a.rotary % 2 == 0,
            "rotary is " + std::to_string(a.rotary) +
                ", not an even number of at most headDim = " + std::to_string(a.head_dim));
    require(style == "half" || style == "interleaved", "style is '" + style + "', not half or interleaved");
    require_tensor(cosines, "cos", DType::f32, {-1, a.rotary / 2});
    require_tensor(sines, "sin", DType::f32, cosines.shape);
    require_tensor(positions, "positions", DType::i32, {q.dim(0)});
    a.halves = style == "half", a.places = cosines.dim(0);
    a.cosines = cosines.data<float>(), a.sines = sines.data<float>(), a.positions = positions.data<int32_t>();
  }
  a.tokens = static_cast<int>(q.dim(0)), a.sequences = at.sequences;
  if (a.tokens == 0 || a.sequences == 0)
    return require(a.tokens == 0, "starts does not run to the number of tokens, " + std::to_string(a.tokens));
  a.q = columns(q, of_q), a.k = columns(k, of_k), a.v = columns(v, of_v), a.y = y.raw(), a.keys = keys.raw(),
  a.values = values.raw();
  a.q_pitch = of_q.pitch, a.k_pitch = of_k.pitch, a.v_pitch = of_v.pitch;
  a.starts = at.starts, a.slots = at.slots, a.totals = at.totals;
  a.x_type = type_index(q.dtype), a.y_type = type_index(y.dtype);
  a.slots_count = static_cast<int>(keys.dim(0)), a.rows = static_cast<int>(keys.dim(1));
  a.fault = fault_of(exec);
  a.outside = exec.fault("LPQ_NATIVE_ARGUMENT", "a position lies outside the table of " + std::to_string(a.places));
  exec.launch_after("lpq_rope_append" + suffix(keys), {a.tokens * div_up(a.heads + 2 * a.kv_heads, kAppendWarps)},
                    {32 * kAppendWarps}, 0, a);
  exec.wrote(y, keys, values);
}
LPQ_CUDA_OP(rope_append, "rope_append");

}  // namespace
}  // namespace lpq::cuda
