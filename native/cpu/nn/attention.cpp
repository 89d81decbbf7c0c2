// attention: every token of a sequence over those before it. Contract: native/ops.ts.
#include "cpu/nn/attention.h"

namespace lpq::nn {
namespace {

void attention(Call& call, Exec& exec) {
  const Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2), &starts = call.input(3), &y = call.output(0);
  const AttentionShape shape = attention_shape(call.params);
  for (const auto& [tensor, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}})
    require_dtype(*tensor, name, {DType::f32});
  const Columns queries = columns_of(call.params, "qFirst", q, "q", shape.heads * shape.head_dim);
  const Columns keys = columns_of(call.params, "kFirst", k, "k", shape.kv_heads * shape.head_dim);
  const Columns values = columns_of(call.params, "vFirst", v, "v", shape.kv_heads * shape.value_dim);
  const int64_t tokens = q.dim(0);
  require_shape(k, "k", {tokens, -1});
  require_shape(v, "v", {tokens, -1});
  require_tensor(y, "y", DType::f32, {tokens, shape.heads * shape.value_dim});
  require(tokens == 0 || (y.raw() != q.raw() && y.raw() != k.raw() && y.raw() != v.raw()),
          "y must be none of q, k and v");
  require_tensor(starts, "starts", DType::i32, {-1});
  const int64_t sequences = starts.dim(0) - 1;
  require(sequences >= 0, "starts is empty");
  const int32_t* start = starts.data<int32_t>();
  require(start[0] == 0 && start[sequences] == tokens,
          "starts does not run from 0 to the number of tokens, " + std::to_string(tokens));
  for (int64_t s = 0; s < sequences; ++s)
    require(start[s] <= start[s + 1], "starts falls after sequence " + std::to_string(s));

  std::vector<KeyBlock> blocks;
  std::vector<AttentionTask> tasks;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t first = start[s], length = start[s + 1] - first, block = static_cast<int64_t>(blocks.size());
    for (int64_t key = 0; key < length; key += kKeys) blocks.push_back({first, length, key});
    // The last queries see most keys: their tasks first, so that the workers end together.
    for (int64_t query = (length - 1) / kQueries * kQueries; length > 0 && query >= 0; query -= kQueries)
      for (int64_t head = 0; head < shape.heads; ++head) tasks.push_back({first, query, length, head, block});
  }
  const std::vector<float> sinks = attention_sinks(call, 4, shape.heads);
  const KeysValues read{k.raw() + keys.first * 4, v.raw() + values.first * 4, DType::f32, keys.pitch, values.pitch};
  const Attention work(shape, q.data<float>() + queries.first, queries.pitch, read,
                       sinks.empty() ? nullptr : sinks.data(), y.data<float>());
  run_attention(exec, work, blocks, tasks, shape.kv_heads);
}

}  // namespace
LPQ_OP(attention, "attention");
}  // namespace lpq::nn
