// cached_attention and cache_append: the newest tokens of sequences whose earlier keys and values are kept. Contracts:
// native/cache-ops.ts. Blocks of keys are counted from the start of the sequence, as in attention: over an f32 cache an output is
// the same, bit by bit, as if all tokens were computed at once.
#include "cpu/nn/attention.h"

namespace lpq::nn {
namespace {

constexpr std::initializer_list<DType> kCached = {DType::f32, DType::f16, DType::bf16};

// Where the new tokens of a sequence go: rows `first` .. `first + count` of x; tokens past .. past + count of the cache's slot.
struct Entry {
  int64_t first, count, past, slot;
};

std::vector<Entry> entries(const Tensor& starts, const Tensor& slots, const Tensor& lengths, int64_t tokens, const Tensor& cache) {
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
    require(slot[s] >= 0 && slot[s] < cache.dim(0), name + " has slot " + std::to_string(slot[s]) + " of " + std::to_string(cache.dim(0)));
    require(length[s] >= count && length[s] <= cache.dim(1),
            name + " has length " + std::to_string(length[s]) + ", not " + std::to_string(count) + " to " + std::to_string(cache.dim(1)));
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
      for (int64_t head = 0; head < shape.heads; ++head) tasks.push_back({e.first - e.past, query, length, head, block});
  }
  const std::vector<float> sinks = attention_sinks(call, 6, shape.heads);
  const Attention work(shape, q.data<float>(), KeysValues{keys.raw(), values.raw(), keys.dtype}, sinks.empty() ? nullptr : sinks.data(), y.data<float>());
  run_attention(exec, work, blocks, tasks, shape.kv_heads);
}

void cache_append(Call& call, Exec& exec) {
  const Tensor* const x[2] = {&call.input(0), &call.input(1)};
  const Tensor* const caches[2] = {&call.output(0), &call.output(1)};
  const char* const names[2] = {"k", "v"};
  for (int i = 0; i < 2; ++i) {
    require_tensor(*x[i], names[i], DType::f32, {x[0]->dim(0), -1});
    require_dtype(*caches[i], i ? "values" : "keys", kCached);
    require_shape(*caches[i], i ? "values" : "keys", {caches[0]->dim(0), caches[0]->dim(1), x[i]->dim(1)});
  }
  const std::vector<Entry> sequences = entries(call.input(2), call.input(3), call.input(4), x[0]->dim(0), *caches[0]);
  struct Row {
    int64_t from, to;
  };
  std::vector<Row> rows;
  for (const Entry& e : sequences)
    for (int64_t t = 0; t < e.count; ++t) rows.push_back({e.first + t, e.slot * caches[0]->dim(1) + e.past + t});
  exec.pool.parallel_for(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int side = 0; side < 2; ++side) {
        const auto [from, to] = rows[static_cast<size_t>(i)];
        const int64_t width = x[side]->dim(1);
        narrow(x[side]->data<float>() + from * width, *caches[side], to * width, width);
      }
  });
}

}  // namespace
LPQ_OP(cached_attention, "cached_attention");
LPQ_OP(cache_append, "cache_append");
}  // namespace lpq::nn
