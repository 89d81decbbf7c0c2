// cached_attention, cache_append and rope_append: the newest tokens of sequences whose earlier keys and values are
// kept. Contracts: native/cache-ops.ts. Blocks of keys are counted from the start of the sequence, as in attention:
// over an f32 cache an output is the same, bit by bit, as if all tokens were computed at once.
#include "cpu/nn/attention.h"
#include "cpu/nn/rope.h"

namespace lpq::nn {
namespace {

constexpr std::initializer_list<DType> kCached = {DType::f32, DType::f16, DType::bf16};

// Where the new tokens of a sequence go: rows `first` .. `first + count` of x; tokens past .. past + count of the
// cache's slot.
struct Entry {
  int64_t first, count, past, slot;
};

std::vector<Entry> entries(const Tensor& starts, const Tensor& slots, const Tensor& lengths, int64_t tokens,
                           const Tensor& cache) {
  require_tensor(starts, "starts", DType::i32, {-1});
  const int64_t sequences = starts.dim(0) - 1;
  require(sequences >= 0, "starts is empty");
  require_tensor(slots, "slots", DType::i32, {sequences});
  require_tensor(lengths, "lengths", DType::i32, {sequences});
  const int32_t *start = starts.data<int32_t>(), *slot = slots.data<int32_t>(), *length = lengths.data<int32_t>();
  require(start[0] == 0 && start[sequences] == tokens,
          "starts does not run from 0 to the number of tokens, " + std::to_string(tokens));
  std::vector<Entry> found;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t count = start[s + 1] - start[s];
    const std::string name = "sequence " + std::to_string(s);
    require(count >= 0, "starts falls after " + name);
    require(slot[s] >= 0 && slot[s] < cache.dim(0),
            name + " has slot " + std::to_string(slot[s]) + " of " + std::to_string(cache.dim(0)));
    require(length[s] >= count && length[s] <= cache.dim(1), name + " has length " + std::to_string(length[s]) +
                                                                 ", not " + std::to_string(count) + " to " +
                                                                 std::to_string(cache.dim(1)));
    found.push_back({start[s], count, length[s] - count, slot[s]});
  }
  return found;
}

void cached_attention(Call& call, Exec& exec) {
  const Tensor &q = call.input(0), &keys = call.input(1), &values = call.input(2), &y = call.output(0);
  const AttentionShape shape = attention_shape(call.params);
  require_tensor(q, "q", DType::f32, {-1, shape.heads * shape.head_dim});
  const int64_t tokens = q.dim(0);
  require_tensor(y, "y", DType::f32, {tokens, shape.heads * shape.value_dim});
  require(tokens == 0 || y.raw() != q.raw(), "y must not be q");
  require_dtype(keys, "keys", kCached);
  require_shape(keys, "keys", {-1, -1, shape.kv_heads * shape.head_dim});
  require_tensor(values, "values", keys.dtype, {keys.dim(0), keys.dim(1), shape.kv_heads * shape.value_dim});
  const std::vector<Entry> sequences = entries(call.input(3), call.input(4), call.input(5), tokens, keys);
  const int64_t most = call.params.integer("most"), longest = call.params.integer("longest");

  std::vector<KeyBlock> blocks;
  std::vector<AttentionTask> tasks;
  for (const Entry& e : sequences) {
    const int64_t length = e.past + e.count, block = static_cast<int64_t>(blocks.size());
    require(e.count <= most && length <= longest, "a sequence has more tokens than most and longest say");
    if (e.count == 0) continue;
    for (int64_t key = 0; key < length; key += kKeys) blocks.push_back({e.slot * keys.dim(1), length, key});
    for (int64_t query = e.past + (e.count - 1) / kQueries * kQueries; query >= e.past; query -= kQueries)
      for (int64_t head = 0; head < shape.heads; ++head)
        tasks.push_back({e.first - e.past, query, length, head, block});
  }
  const std::vector<float> sinks = attention_sinks(call, 6, shape.heads);
  const KeysValues read{keys.raw(), values.raw(), keys.dtype, keys.dim(2), values.dim(2)};
  const Attention work(shape, q.data<float>(), q.dim(1), read, sinks.empty() ? nullptr : sinks.data(), y.data<float>());
  run_attention(exec, work, blocks, tasks, shape.kv_heads);
}

struct Row {
  int64_t from, to;
};
// Rows of x, and those of the cache that they become.
std::vector<Row> rows_of(const std::vector<Entry>& sequences, const Tensor& cache) {
  std::vector<Row> rows;
  for (const Entry& e : sequences)
    for (int64_t t = 0; t < e.count; ++t) rows.push_back({e.first + t, e.slot * cache.dim(1) + e.past + t});
  return rows;
}

void cache_append(Call& call, Exec& exec) {
  const Tensor* const x[2] = {&call.input(0), &call.input(1)};
  const Tensor* const caches[2] = {&call.output(0), &call.output(1)};
  const char* const names[2] = {"k", "v"};
  Columns columns[2];
  for (int i = 0; i < 2; ++i) {
    require_tensor(*x[i], names[i], DType::f32, {x[0]->dim(0), -1});
    require_dtype(*caches[i], i ? "values" : "keys", kCached);
    require_shape(*caches[i], i ? "values" : "keys", {caches[0]->dim(0), caches[0]->dim(1), -1});
    const char* const key = i ? "vFirst" : "kFirst";
    if (call.params.integer(key, -1) < 0)
      require_shape(*caches[i], i ? "values" : "keys", {caches[0]->dim(0), caches[0]->dim(1), x[i]->dim(1)});
    columns[i] = columns_of(call.params, key, *x[i], names[i], caches[i]->dim(2));
  }
  const std::vector<Row> rows =
      rows_of(entries(call.input(2), call.input(3), call.input(4), x[0]->dim(0), *caches[0]), *caches[0]);
  exec.pool.parallel_for(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int side = 0; side < 2; ++side) {
        const auto [from, to] = rows[static_cast<size_t>(i)];
        const int64_t width = caches[side]->dim(2);
        narrow(x[side]->data<float>() + from * columns[side].pitch + columns[side].first, *caches[side], to * width,
               width);
      }
  });
}

void rope_append(Call& call, Exec& exec) {
  const Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2), &y = call.output(0), &keys = call.output(1),
               &values = call.output(2);
  const int64_t heads = call.params.integer("heads"), kv_heads = call.params.integer("kvHeads"),
                head_dim = call.params.integer("headDim");
  const int64_t value_dim = call.params.integer("valueDim", head_dim), tokens = q.rank() > 0 ? q.dim(0) : 0;
  require(heads > 0 && kv_heads > 0 && head_dim > 0 && value_dim > 0,
          "heads, kvHeads, headDim and valueDim must be positive");
  for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}})
    require_tensor(*tensor, name, DType::f32, {tokens, -1});
  const Columns of[3] = {columns_of(call.params, "qFirst", q, "q", heads * head_dim),
                         columns_of(call.params, "kFirst", k, "k", kv_heads * head_dim),
                         columns_of(call.params, "vFirst", v, "v", kv_heads * value_dim)};
  require_dtype(y, "y", kCached);
  require_shape(y, "y", {tokens, heads * head_dim});
  require(tokens == 0 || y.raw() != q.raw() || of[0].pitch == heads * head_dim,
          "y may be q where that has no other columns");
  require_dtype(keys, "keys", kCached);
  require_shape(keys, "keys", {-1, -1, kv_heads * head_dim});
  require_tensor(values, "values", keys.dtype, {keys.dim(0), keys.dim(1), kv_heads * value_dim});
  const std::vector<Row> rows = rows_of(entries(call.input(3), call.input(4), call.input(5), tokens, keys), keys);
  Rotation rotate;
  if (call.in.size() > 8) rotate = rotation(call, 6, tokens);
  // The norms' weights come last.
  std::vector<float> gains[2];
  double eps = 0;
  if (call.in.size() == 8 || call.in.size() == 11) {
    eps = call.params.number("eps");
    const float offset = static_cast<float>(call.params.number("offset", 0.0));
    for (size_t i = 0; i < 2; ++i) {
      const Tensor& weight = call.input(call.in.size() - 2 + i);
      const char* const name = i ? "the norm of k" : "the norm of q";
      require_dtype(weight, name, {DType::f32, DType::f16, DType::bf16});
      require_shape(weight, name, {head_dim});
      gains[i].resize(static_cast<size_t>(head_dim));
      widen(weight, 0, head_dim, gains[i].data());
      for (float& gain : gains[i]) gain += offset;
    }
  }
  exec.pool.parallel_for(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> turned(static_cast<size_t>(std::max(heads, kv_heads) * head_dim));
    for (int64_t i = begin; i < end; ++i) {
      const auto [from, to] = rows[static_cast<size_t>(i)];
      const auto side = [&](const Tensor& x, const Columns& columns, int64_t count, const std::vector<float>& gain,
                            const Tensor& kept, int64_t at) {
        const float* row = x.data<float>() + from * columns.pitch + columns.first;
        std::copy(row, row + count * head_dim, turned.begin());
        for (int64_t h = 0; h < count && !gain.empty(); ++h)
          vector_kernels().rmsnorm(turned.data() + h * head_dim, gain.data(), turned.data() + h * head_dim, head_dim,
                                   eps);
        rotate.turn(turned.data(), count, from);
        narrow(turned.data(), kept, at * count * head_dim, count * head_dim);
      };
      side(q, of[0], heads, gains[0], y, from);
      side(k, of[1], kv_heads, gains[1], keys, to);
      narrow(v.data<float>() + from * of[2].pitch + of[2].first, values, to * kv_heads * value_dim,
             kv_heads * value_dim);
    }
  });
}

}  // namespace
LPQ_OP(cached_attention, "cached_attention");
LPQ_OP(cache_append, "cache_append");
LPQ_OP(rope_append, "rope_append");
}  // namespace lpq::nn
