// Causal attention with an online softmax (Dao et al. 2022, arXiv:2205.14135, algorithm 1): scores exist one block at a
// time, and both products run on the matrix kernels of cpu/linalg.
//
// Arithmetic: a score is one fma chain over headDim of (q * scale) and k. Keys go in blocks of kKeys, counted from the
// start of the sequence; a block's part of the output is one fma chain over its keys, added to the rescaled sum so far.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/checks.h"
#include "cpu/linalg/kernels.h"
#include "cpu/linalg/scratch.h"
#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

constexpr int64_t kQueries = 84;  // a multiple of the row counts of all kernels' tiles
constexpr int64_t kKeys = 128;    // likewise of their columns

struct Shape {
  int64_t heads, kv_heads, head_dim, value_dim, window;
  float scale, cap;
};

struct Task {
  int64_t first, length;  // of the sequence
  int64_t query;          // the first of up to kQueries, counted in the sequence
  int64_t head;
  int64_t block;  // the sequence's first key block among all
};

class Attention {
 public:
  // sinks: one logit a head that takes part in the softmax and has no value; or null.
  Attention(const Shape& shape, const float* q, const float* k, const float* v, const float* sinks, float* y)
      : shape_(shape), q_(q), k_(k), v_(v), sinks_(sinks), y_(y), kernel_(linalg::kernels<float>()), rows_(vector_kernels()) {
    value_panels_ = (shape.value_dim + kernel_.nr - 1) / kernel_.nr;
    block_floats_ = kKeys * shape.head_dim + kKeys * value_panels_ * kernel_.nr;
  }

  int64_t block_floats() const { return block_floats_; }

  // Keys [key, key + kKeys) of the sequence at `first`, for one kv head: panels of keys for the scores, then panels of
  // value dimensions for the output.
  void pack_block(float* to, int64_t first, int64_t length, int64_t key, int64_t kv_head) const {
    const int64_t nr = kernel_.nr, hd = shape_.head_dim, vd = shape_.value_dim, here = std::min(kKeys, length - key);
    const int64_t k_row = shape_.kv_heads * hd, v_row = shape_.kv_heads * vd;
    const float* k = k_ + (first + key) * k_row + kv_head * hd;
    const float* v = v_ + (first + key) * v_row + kv_head * vd;
    for (int64_t j = 0; j < here; j += nr)
      kernel_.pack(to + j * hd, {k + j * k_row, DType::f32, k_row, 1}, static_cast<int>(std::min(nr, here - j)),
                   static_cast<int>(nr), hd, 1.0f);
    to += kKeys * hd;
    for (int64_t j = 0; j < vd; j += nr)
      kernel_.pack(to + j * kKeys, {v + j, DType::f32, 1, v_row}, static_cast<int>(std::min(nr, vd - j)),
                   static_cast<int>(nr), here, 1.0f);
  }

  // One head's output for up to kQueries queries. `packed` holds the blocks of all sequences, kv head by kv head.
  void run(const Task& task, const float* packed, int64_t blocks) const {
    const int64_t mr = kernel_.mr, nr = kernel_.nr, hd = shape_.head_dim, vd = shape_.value_dim;
    const int64_t queries = std::min(kQueries, task.length - task.query), panels = (queries + mr - 1) / mr;
    const int64_t q_stride = hd * mr + linalg::kPanelPad, p_stride = kKeys * mr + linalg::kPanelPad;
    static thread_local linalg::Scratch scratch;
    float* const q_panels =
        scratch.get<float>(static_cast<size_t>(panels * (q_stride + p_stride) + kQueries * (kKeys + vd + 2)));
    float* const p_panels = q_panels + panels * q_stride;
    float* const scores = p_panels + panels * p_stride;
    float* const out = scores + kQueries * kKeys;
    float *const most = out + kQueries * vd, *const sum = most + kQueries;
    const int64_t q_row = shape_.heads * hd;
    const float* q = q_ + (task.first + task.query) * q_row + task.head * hd;
    for (int64_t i = 0; i < queries; i += mr)
      kernel_.pack(q_panels + i / mr * q_stride, {q + i * q_row, DType::f32, q_row, 1},
                   static_cast<int>(std::min(mr, queries - i)), static_cast<int>(mr), hd, shape_.scale);
    std::fill(out, out + queries * vd, 0.0f);
    std::fill(most, most + queries, sinks_ ? sinks_[task.head] : -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + queries, sinks_ ? 1.0f : 0.0f);

    const int64_t last = task.query + queries;  // one past the last key that any query sees
    const int64_t begin = shape_.window > 0 ? std::max<int64_t>(0, task.query - shape_.window + 1) : 0;
    for (int64_t block = begin / kKeys; block * kKeys < last; ++block) {
      const int64_t key = block * kKeys, keys = std::min(kKeys, last - key);
      const float* keys_packed =
          packed + (task.head / (shape_.heads / shape_.kv_heads) * blocks + task.block + block) * block_floats_;
      const float* values_packed = keys_packed + kKeys * hd;
      for (int64_t j = 0; j < keys; j += nr)
        for (int64_t i = 0; i < queries; i += mr)
          kernel_.tile(hd, q_panels + i / mr * q_stride, keys_packed + j * hd, scores + i * kKeys + j, kKeys,
                       static_cast<int>(std::min(mr, queries - i)), static_cast<int>(std::min(nr, keys - j)), false);
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t t = task.query + i;
        const int64_t low = shape_.window > 0 ? std::clamp<int64_t>(t - shape_.window + 1 - key, 0, keys) : 0;
        const int64_t high = std::clamp<int64_t>(t + 1 - key, 0, keys);
        float* row = scores + i * kKeys;
        if (low >= high) {  // nothing to see in this block
          std::fill(row, row + keys, 0.0f);
          continue;
        }
        if (shape_.cap > 0) rows_.soft_cap(row + low, shape_.cap, row + low, high - low);
        const float peak = std::max(most[i], rows_.maximum(row + low, high - low));
        float shrink = most[i] - peak;
        rows_.exponentials(&shrink, 0.0f, &shrink, 1);
        std::fill(row, row + low, 0.0f);
        std::fill(row + high, row + keys, 0.0f);
        sum[i] = sum[i] * shrink + rows_.exponentials(row + low, peak, row + low, high - low);
        most[i] = peak;
        if (shrink != 1.0f) rows_.scale(out + i * vd, shrink, out + i * vd, vd);
      }
      for (int64_t i = 0; i < queries; i += mr)
        kernel_.pack(p_panels + i / mr * p_stride, {scores + i * kKeys, DType::f32, kKeys, 1},
                     static_cast<int>(std::min(mr, queries - i)), static_cast<int>(mr), keys, 1.0f);
      for (int64_t j = 0; j < vd; j += nr)
        for (int64_t i = 0; i < queries; i += mr)
          kernel_.tile(keys, p_panels + i / mr * p_stride, values_packed + j * kKeys, out + i * vd + j, vd,
                       static_cast<int>(std::min(mr, queries - i)), static_cast<int>(std::min(nr, vd - j)), true);
    }
    float* y = y_ + (task.first + task.query) * shape_.heads * vd + task.head * vd;
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = 0; j < vd; ++j) y[i * shape_.heads * vd + j] = out[i * vd + j] / sum[i];
  }

 private:
  Shape shape_;
  const float *q_, *k_, *v_, *sinks_;
  float* y_;
  const linalg::Kernels<float>& kernel_;
  const VectorKernels& rows_;
  int64_t value_panels_, block_floats_;
};

void attention(Call& call, Exec& exec) {
  const Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2), &starts = call.input(3), &y = call.output(0);
  Shape shape;
  shape.heads = call.params.integer("heads");
  shape.kv_heads = call.params.integer("kvHeads");
  shape.head_dim = call.params.integer("headDim");
  shape.value_dim = call.params.integer("valueDim", shape.head_dim);
  shape.window = call.params.integer("window", 0);
  shape.scale = static_cast<float>(call.params.number("scale"));
  shape.cap = static_cast<float>(call.params.number("softCap", 0.0));
  require(shape.heads > 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
          "heads is " + std::to_string(shape.heads) + ", not a multiple of kvHeads = " + std::to_string(shape.kv_heads));
  require(shape.head_dim > 0 && shape.value_dim > 0, "headDim and valueDim must be positive");
  require(shape.window >= 0, "window is " + std::to_string(shape.window));
  require(shape.cap >= 0, "softCap is " + std::to_string(shape.cap));
  require_tensor(q, "q", DType::f32, {-1, shape.heads * shape.head_dim});
  const int64_t tokens = q.dim(0);
  require_tensor(k, "k", DType::f32, {tokens, shape.kv_heads * shape.head_dim});
  require_tensor(v, "v", DType::f32, {tokens, shape.kv_heads * shape.value_dim});
  require_tensor(y, "y", DType::f32, {tokens, shape.heads * shape.value_dim});
  require(tokens == 0 || (y.raw() != q.raw() && y.raw() != k.raw() && y.raw() != v.raw()), "y must be none of q, k and v");
  require_tensor(starts, "starts", DType::i32, {-1});
  const int64_t sequences = starts.dim(0) - 1;
  require(sequences >= 0, "starts is empty");
  const int32_t* start = starts.data<int32_t>();
  require(start[0] == 0 && start[sequences] == tokens,
          "starts does not run from 0 to the number of tokens, " + std::to_string(tokens));
  for (int64_t s = 0; s < sequences; ++s)
    require(start[s] <= start[s + 1], "starts falls after sequence " + std::to_string(s));

  struct Block {
    int64_t first, length, key;
  };
  std::vector<Block> blocks;
  std::vector<Task> tasks;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t first = start[s], length = start[s + 1] - first, block = static_cast<int64_t>(blocks.size());
    for (int64_t key = 0; key < length; key += kKeys) blocks.push_back({first, length, key});
    // The last queries see most keys: their tasks first, so that the workers end together.
    for (int64_t query = (length - 1) / kQueries * kQueries; length > 0 && query >= 0; query -= kQueries)
      for (int64_t head = 0; head < shape.heads; ++head) tasks.push_back({first, length, query, head, block});
  }
  std::vector<float> sinks(call.in.size() > 4 ? static_cast<size_t>(shape.heads) : 0);
  if (!sinks.empty()) {
    require_dtype(call.input(4), "sinks", {DType::f32, DType::f16, DType::bf16});
    require_shape(call.input(4), "sinks", {shape.heads});
    widen(call.input(4), 0, shape.heads, sinks.data());
    for (const float sink : sinks)
      if (!std::isfinite(sink)) throw Failure("LPQ_NATIVE_NUMERICS", "a sink is NaN or infinite");
  }
  const Attention work(shape, q.data<float>(), k.data<float>(), v.data<float>(), sinks.empty() ? nullptr : sinks.data(), y.data<float>());
  const int64_t count = static_cast<int64_t>(blocks.size());
  const Tensor packed = allocate(DType::f32, {count * shape.kv_heads, work.block_floats()});
  float* panels = packed.data<float>();
  exec.pool.parallel_for(count * shape.kv_heads, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Block& b = blocks[static_cast<size_t>(i % count)];
      work.pack_block(panels + i * work.block_floats(), b.first, b.length, b.key, i / count);
    }
  });
  exec.total = static_cast<int64_t>(tasks.size());
  exec.pool.parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      work.run(tasks[static_cast<size_t>(i)], panels, count);
      ++exec.done;
    }
  });
}

}  // namespace
LPQ_OP(attention, "attention");
}  // namespace lpq::nn
