// index_keys, selected_attention.
#include "ops/selected.h"
#include "cuda/recurrent/places.h"

namespace lpq::cuda {
namespace {

// Scores that are held at once.
constexpr int64_t kScoreBytes = int64_t{256} << 20;

// As in indexed.cu.
struct Index {
  const float *q, *k, *weights;
  int heads, dim, choices, block, rate, top, local, rows;
};

void index_keys(Call& call, CudaExec& exec) {
  const ops::IndexKeys a(call);
  const int64_t tokens = a.q.dim(0);
  if (tokens == 0) return;
  const Past past = past_of(exec, a.past, tokens);
  const int64_t kept = a.past.state ? a.past.state->dim(1) : 0, entries = a.rate > 1 ? a.k.dim(0) : tokens;
  const Places places(exec, past, {a.rate, entries, a.rate > 1 ? 0 : kept, a.rate > 1 ? kept : 0});
  if (past.state) append_rows(exec, a.k, places, past.sequences, a.rate, *a.past.state);
  const Index of{a.q.data<float>(),
                 past.state ? past.state : a.k.data<float>(),
                 a.weights ? a.weights->data<float>() : nullptr,
                 static_cast<int>(a.heads),
                 static_cast<int>(a.k.dim(1)),
                 static_cast<int>(a.choices),
                 static_cast<int>(a.block),
                 static_cast<int>(a.rate),
                 static_cast<int>(a.top),
                 static_cast<int>(a.local),
                 static_cast<int>(kept)};
  const int64_t most = past.state ? kept : entries, runs = std::max<int64_t>(1, div_up(most, a.block));
  const int64_t piece = std::clamp<int64_t>(kScoreBytes / (4 * a.choices * runs), 1, std::min<int64_t>(tokens, 32768));
  const Scratch scores = exec.scratch(static_cast<size_t>(piece * a.choices * runs) * 4);
  const int pitch = static_cast<int>(runs);
  uint32_t* fault = exec.fault("LPQ_NATIVE_NUMERICS", "a score of the indexer is NaN");
  for (int64_t first = 0; first < tokens; first += piece) {
    const int begin = static_cast<int>(first);
    const int64_t count = std::min(piece, tokens - first);
    if (a.block > 1) exec.fill_zero(scores.as<void>(), static_cast<size_t>(count * a.choices * runs) * 4);
    exec.launch("lpq_index_scores", {div_up(most, 128), count}, {128}, static_cast<unsigned>(4 * a.heads * a.k.dim(1)),
                of, past, places.get(), begin, scores.as<uint32_t>(), pitch, fault);
    exec.launch("lpq_index_select", {a.choices, count}, {256}, 0, of, past, places.get(), begin,
                static_cast<const uint32_t*>(scores.as<uint32_t>()), pitch, a.y.data<int32_t>());
  }
}

// As in selected.cu.
struct Selected {
  const float* q;
  const void *k, *v;
  const int32_t* selected;
  float* y;
  int heads, kv_heads, head_dim, value_dim, choices, top, block, rows;
  float scale;
};

void selected_attention(Call& call, CudaExec& exec) {
  const ops::SelectedAttention a(call);
  const ops::AttentionShape& shape = a.shape;
  const int64_t tokens = a.q.dim(0);
  if (tokens == 0) return;
  require(shape.value_dim <= 512, "valueDim is at most 512");
  const Past past = past_of(exec, a.starts, a.slots, a.totals, a.kept ? a.k.dim(0) : 0, tokens);
  const Places places(exec, past, {0, -1, a.kept ? a.k.dim(1) : 0, 0});
  const Selected of{a.q.data<float>(),
                    a.k.raw(),
                    a.v.raw(),
                    a.selected.data<int32_t>(),
                    a.y.data<float>(),
                    static_cast<int>(shape.heads),
                    static_cast<int>(shape.kv_heads),
                    static_cast<int>(shape.head_dim),
                    static_cast<int>(shape.value_dim),
                    static_cast<int>(a.choices),
                    static_cast<int>(a.selected.dim(1) / a.choices),
                    static_cast<int>(a.block),
                    static_cast<int>(a.kept ? a.k.dim(1) : 0),
                    shape.scale};
  const char* dims = shape.value_dim <= 128 ? "_4" : shape.value_dim <= 256 ? "_8" : "_16";
  exec.launch("lpq_selected_attention" + suffix(a.k) + dims, {tokens, div_up(shape.heads, 4)}, {32, 4},
              static_cast<unsigned>(16 * shape.head_dim), of, past, places.get());
}

}  // namespace
LPQ_CUDA_OP(index_keys, "index_keys");
LPQ_CUDA_OP(selected_attention, "selected_attention");
}  // namespace lpq::cuda
