// cached_attention, cache_append and rope_append: the newest tokens of sequences whose earlier keys and values are
// kept. Blocks of keys are counted from the start of the sequence, as in attention:
// over an f32 cache an output is the same, bit by bit, as if all tokens were computed at once.
#include "cpu/nn/attention.h"
#include "cpu/nn/rope.h"

namespace lpq::nn {
namespace {

// Where the new tokens of a sequence go: rows `first` .. `first + count` of x; tokens past .. past + count of the
// cache's slot.
struct Entry {
  int64_t first, count, past, slot;
};

std::vector<Entry> entries(const ops::CacheStep& step, int64_t tokens, const Tensor& cache) {
  const int64_t sequences = step.sequences;
  const int32_t *start = step.starts.data<int32_t>(), *slot = step.slots.data<int32_t>(),
                *length = step.totals.data<int32_t>();
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
  const ops::CachedAttention a(call);
  require_f32({{&a.q, "q"}, {&a.y, "y"}});
  const ops::AttentionShape& shape = a.shape;
  const Tensor &q = a.q, &keys = a.keys, &values = a.values;

  std::vector<KeyBlock> blocks;
  std::vector<AttentionTask> tasks;
  // Heads of a single query's task: those that share keys, fewer where threads would have nothing to do.
  int64_t shared = shape.heads / shape.kv_heads;
  const auto too_many = [&] { return shared > kQueries || shape.heads / shared < exec.pool.size(); };
  for (int64_t part = 2; too_many() && shared > 1; ++part)
    if (shape.heads / shape.kv_heads % part == 0) shared = shape.heads / shape.kv_heads / part;
  for (const Entry& e : entries(a.step, q.dim(0), keys)) {
    const int64_t length = e.past + e.count, block = static_cast<int64_t>(blocks.size());
    require(e.count <= a.most && length <= a.longest, "a sequence has more tokens than most and longest say");
    if (e.count == 0) continue;
    if (e.count == 1) {
      for (int64_t head = 0; head < shape.heads; head += shared)
        tasks.push_back({e.first - e.past, e.past, length, head, e.slot * keys.dim(1), shared});
      continue;
    }
    for (int64_t key = 0; key < length; key += kKeys) blocks.push_back({e.slot * keys.dim(1), length, key});
    for (int64_t query = e.past + (e.count - 1) / kQueries * kQueries; query >= e.past; query -= kQueries)
      for (int64_t head = 0; head < shape.heads; ++head)
        tasks.push_back({e.first - e.past, query, length, head, block});
  }
  const std::vector<float> sinks = attention_sinks(a.sinks, shape.heads);
  const KeysValues read{keys.raw(), values.raw(), keys.dtype, keys.dim(2), values.dim(2)};
  const Attention work(shape, q.data<float>(), q.dim(1), read, sinks.empty() ? nullptr : sinks.data(),
                       a.y.data<float>());
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
  const ops::CacheAppend a(call);
  require_f32({{&a.k, "k"}});
  const std::vector<Row> rows = rows_of(entries(a.step, a.k.dim(0), a.keys), a.keys);
  const auto side = [](const Tensor& x, const Columns& columns, const Tensor& cache, const Row& row) {
    const int64_t width = cache.dim(2);
    narrow(x.data<float>() + row.from * columns.pitch + columns.first, cache, row.to * width, width);
  };
  exec.pool.for_each(static_cast<int64_t>(rows.size()), 16, [&](int64_t i) {
    side(a.k, a.of_k, a.keys, rows[static_cast<size_t>(i)]);
    side(a.v, a.of_v, a.values, rows[static_cast<size_t>(i)]);
  });
}

void rope_append(Call& call, Exec& exec) {
  const ops::RopeAppend a(call);
  require_f32({{&a.q, "q"}});
  const int64_t heads = a.shape.heads, kv_heads = a.shape.kv_heads, head_dim = a.shape.head_dim;
  const std::vector<Row> rows = rows_of(entries(a.step, a.q.dim(0), a.keys), a.keys);
  const Rotation rotate = rotation(a.rotation, head_dim);
  std::vector<float> gains[2];
  for (int i = 0; i < 2 && a.q_norm; ++i) {
    gains[i].resize(static_cast<size_t>(head_dim));
    widen(i ? *a.k_norm : *a.q_norm, 0, head_dim, gains[i].data());
    for (float& gain : gains[i]) gain += a.offset;
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
                                   a.eps);
        rotate.turn(turned.data(), count, from);
        narrow(turned.data(), kept, at * count * head_dim, count * head_dim);
      };
      side(a.q, a.of_q, heads, gains[0], a.y, from);
      side(a.k, a.of_k, kv_heads, gains[1], a.keys, to);
      const int64_t width = a.shape.values();
      narrow(a.v.data<float>() + from * a.of_v.pitch + a.of_v.first, a.values, to * width, width);
    }
  });
}

}  // namespace
LPQ_OP(cached_attention, "cached_attention");
LPQ_OP(cache_append, "cache_append");
LPQ_OP(rope_append, "rope_append");
}  // namespace lpq::nn
