// attention: every token of a sequence over those before it.
#include "cpu/nn/attention.h"

namespace lpq::nn {
namespace {

void attention(Call& call, Exec& exec) {
  const ops::Attention a(call);
  require_f32({{&a.k, "k"}, {&a.v, "v"}, {&a.y, "y"}});
  const ops::AttentionShape& shape = a.shape;
  const std::vector<int64_t> start = sequence_starts(a.starts, a.q.dim(0));

  std::vector<KeyBlock> blocks;
  std::vector<AttentionTask> tasks;
  for (size_t s = 0; s + 1 < start.size(); ++s) {
    const int64_t first = start[s], length = start[s + 1] - first, block = static_cast<int64_t>(blocks.size());
    for (int64_t key = 0; key < length; key += kKeys) blocks.push_back({first, length, key});
    // The last queries see most keys: their tasks first, so that the workers end together.
    for (int64_t query = (length - 1) / kQueries * kQueries; length > 0 && query >= 0; query -= kQueries)
      for (int64_t head = 0; head < shape.heads; ++head) tasks.push_back({first, query, length, head, block});
  }
  const std::vector<float> sinks = attention_sinks(a.sinks, shape.heads);
  const KeysValues read{a.k.raw() + a.of_k.first * 4, a.v.raw() + a.of_v.first * 4, DType::f32, a.of_k.pitch,
                        a.of_v.pitch};
  const Attention work(shape, a.q.data<float>() + a.of_q.first, a.of_q.pitch, read,
                       sinks.empty() ? nullptr : sinks.data(), a.y.data<float>(), products_of(a.bf16));
  run_attention(exec, work, blocks, tasks, shape.kv_heads);
}

}  // namespace
LPQ_OP(attention, "attention");
}  // namespace lpq::nn
