// Causal attention with an online softmax (Dao et al. 2022, arXiv:2205.14135, algorithm 1): scores exist one block at a
// time, and both products run on the matrix kernels of cpu/linalg.
//
// Arithmetic: a score is one fma chain over headDim of (q * scale) and k. Keys go in blocks of kKeys, counted from the
// start of the sequence; a block's part of the output is one fma chain over its keys, added to the rescaled sum so far.
// With products in bf16 the operands of both are rounded first (cpu/linalg/gemm.h).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "cpu/checks.h"
#include "cpu/linalg/gemm_driver.h"
#include "cpu/linalg/scratch.h"
#include "cpu/nn/cast.h"
#include "ops/attention.h"

namespace lpq::nn {

inline constexpr int64_t kQueries = 84;  // a multiple of the row counts of all kernels' tiles
inline constexpr int64_t kKeys = 128;    // likewise of their columns

using ops::AttentionShape;

// Keys and values, one token a row: of f32, f16 or bf16; elements from one row to the next.
struct KeysValues {
  const std::byte *k, *v;
  DType dtype;
  int64_t k_row, v_row;
};

// Up to kQueries queries of one head, or a single query of up to kQueries heads that share keys and values. Tokens are
// counted in their sequence.
struct AttentionTask {
  int64_t query_row;      // row of q and y that the sequence's token 0 has, or would have
  int64_t query, length;  // the first; one past the sequence's last
  int64_t head;           // the first
  int64_t block;          // the sequence's first key block among all; of a single query its first row in k and v
  int64_t heads = 0;      // of a single query, which packs the blocks itself: no other reads them; else 0
};

// kKeys tokens of a sequence from `key` on; `row`: its first token's in k and v.
struct KeyBlock {
  int64_t row, length, key;
};

class Attention {
 public:
  // sinks: one logit a head that takes part in the softmax and has no value; or null.
  Attention(const AttentionShape& shape, const float* q, int64_t q_row, const KeysValues& cache, const float* sinks,
            float* y, Products products = Products::f32)
      : shape_(shape),
        q_(q),
        q_row_(q_row),
        cache_(cache),
        sinks_(sinks),
        y_(y),
        kernel_(linalg::kernels_of(products)),
        rows_(vector_kernels()) {
    value_panels_ = (shape.value_dim + kernel_.nr - 1) / kernel_.nr;
    head_depth_ = kernel_.depth(shape.head_dim), keys_depth_ = kernel_.depth(kKeys);
    block_floats_ = kKeys * head_depth_ + keys_depth_ * value_panels_ * kernel_.nr;
  }

  int64_t block_floats() const { return block_floats_; }

  // A block's keys and values of one kv head: panels of keys for the scores, then panels of value dimensions for the
  // output.
  void pack_block(float* to, const KeyBlock& block, int64_t kv_head) const {
    const int64_t nr = kernel_.nr, hd = shape_.head_dim, vd = shape_.value_dim,
                  here = std::min(kKeys, block.length - block.key);
    const int64_t k_row = cache_.k_row, v_row = cache_.v_row;
    const int64_t size = static_cast<int64_t>(dtype_bytes(cache_.dtype));
    const std::byte* k = cache_.k + ((block.row + block.key) * k_row + kv_head * hd) * size;
    const std::byte* v = cache_.v + ((block.row + block.key) * v_row + kv_head * vd) * size;
    for (int64_t j = 0; j < here; j += nr)
      kernel_.pack(to + j * head_depth_, {k + j * k_row * size, cache_.dtype, k_row, 1},
                   static_cast<int>(std::min(nr, here - j)), static_cast<int>(nr), hd, 1.0f);
    to += kKeys * head_depth_;
    for (int64_t j = 0; j < vd; j += nr)
      kernel_.pack(to + j * keys_depth_, {v + j * size, cache_.dtype, 1, v_row}, static_cast<int>(std::min(nr, vd - j)),
                   static_cast<int>(nr), here, 1.0f);
  }

  // Outputs of a task. `packed` holds the blocks of all sequences, kv head by kv head, for tasks of several queries.
  void run(const AttentionTask& task, const float* packed, int64_t blocks) const {
    const int64_t mr = kernel_.mr, nr = kernel_.nr, hd = shape_.head_dim, vd = shape_.value_dim;
    const bool single = task.heads > 0;
    // What q and y have for each row of scores: a query, or a head of the only one.
    const int64_t rows = single ? task.heads : std::min(kQueries, task.length - task.query);
    const int64_t queries = single ? 1 : rows, panels = (rows + mr - 1) / mr;
    const int64_t q_step = single ? hd : q_row_, y_row = shape_.heads * vd, y_step = single ? vd : y_row;
    const int64_t q_stride = head_depth_ * mr + linalg::kPanelPad, p_stride = keys_depth_ * mr + linalg::kPanelPad;
    static thread_local linalg::Scratch scratch;
    float* const own = scratch.get<float>(static_cast<size_t>(
        (single ? block_floats_ : 0) + panels * (q_stride + p_stride) + kQueries * (kKeys + vd + hd + 2)));
    float* const q_panels = own + (single ? block_floats_ : 0);
    float* const p_panels = q_panels + panels * q_stride;
    float* const scores = p_panels + panels * p_stride;
    float* const out = scores + kQueries * kKeys;
    float *const most = out + kQueries * vd, *const sum = most + kQueries, *const scaled = sum + kQueries;
    const float* q = q_ + (task.query_row + task.query) * q_row_ + task.head * hd;
    for (int64_t i = 0; i < rows; ++i) rows_.scale(q + i * q_step, shape_.scale, scaled + i * hd, hd);
    for (int64_t i = 0; i < rows; i += mr)
      kernel_.pack(q_panels + i / mr * q_stride, {scaled + i * hd, DType::f32, hd, 1},
                   static_cast<int>(std::min(mr, rows - i)), static_cast<int>(mr), hd, 1.0f);
    std::fill(out, out + rows * vd, 0.0f);
    for (int64_t i = 0; i < rows; ++i)
      most[i] = sinks_ ? sinks_[task.head + (single ? i : 0)] : -std::numeric_limits<float>::infinity();
    std::fill(sum, sum + rows, sinks_ ? 1.0f : 0.0f);

    const int64_t last = task.query + queries;  // one past the last key that any query sees
    const int64_t begin = shape_.window > 0 ? std::max<int64_t>(0, task.query - shape_.window + 1) : 0;
    const int64_t kv_head = task.head / (shape_.heads / shape_.kv_heads);
    for (int64_t block = begin / kKeys; block * kKeys < last; ++block) {
      const int64_t key = block * kKeys, keys = std::min(kKeys, last - key);
      if (single) pack_block(own, {task.block, task.length, key}, kv_head);
      const float* keys_packed = single ? own : packed + (kv_head * blocks + task.block + block) * block_floats_;
      const float* values_packed = keys_packed + kKeys * head_depth_;
      for (int64_t j = 0; j < keys; j += nr)
        for (int64_t i = 0; i < rows; i += mr)
          kernel_.tile(hd, q_panels + i / mr * q_stride, keys_packed + j * head_depth_, scores + i * kKeys + j, kKeys,
                       static_cast<int>(std::min(mr, rows - i)), static_cast<int>(std::min(nr, keys - j)), false);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t t = task.query + (single ? 0 : i);
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
      for (int64_t i = 0; i < rows; i += mr)
        kernel_.pack(p_panels + i / mr * p_stride, {scores + i * kKeys, DType::f32, kKeys, 1},
                     static_cast<int>(std::min(mr, rows - i)), static_cast<int>(mr), keys, 1.0f);
      for (int64_t j = 0; j < vd; j += nr)
        for (int64_t i = 0; i < rows; i += mr)
          kernel_.tile(keys, p_panels + i / mr * p_stride, values_packed + j * keys_depth_, out + i * vd + j, vd,
                       static_cast<int>(std::min(mr, rows - i)), static_cast<int>(std::min(nr, vd - j)), true);
    }
    float* y = y_ + (task.query_row + task.query) * y_row + task.head * vd;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < vd; ++j) y[i * y_step + j] = out[i * vd + j] / sum[i];
  }

 private:
  AttentionShape shape_;
  const float* q_;
  int64_t q_row_;
  KeysValues cache_;
  const float* sinks_;
  float* y_;
  const linalg::Kernels<float>& kernel_;
  const VectorKernels& rows_;
  int64_t value_panels_, head_depth_, keys_depth_, block_floats_;
};

// One logit a head, or nothing where there is no tensor.
inline std::vector<float> attention_sinks(const Tensor* from, int64_t heads) {
  std::vector<float> sinks(from ? static_cast<size_t>(heads) : 0);
  if (from) widen(*from, 0, heads, sinks.data());
  for (const float sink : sinks)
    if (!std::isfinite(sink)) throw Failure("LPQ_NATIVE_NUMERICS", "a sink is NaN or infinite");
  return sinks;
}

// The first token of each sequence, and their number. Throws Failure("LPQ_NATIVE_ARGUMENT") where they do not rise from
// 0 to `tokens`.
inline std::vector<int64_t> sequence_starts(const Tensor& starts, int64_t tokens) {
  const int32_t* start = starts.data<int32_t>();
  const int64_t sequences = starts.dim(0) - 1;
  require(start[0] == 0 && start[sequences] == tokens,
          "starts does not run from 0 to the number of tokens, " + std::to_string(tokens));
  for (int64_t s = 0; s < sequences; ++s)
    require(start[s] <= start[s + 1], "starts falls after sequence " + std::to_string(s));
  return {start, start + sequences + 1};
}

// Packs all blocks, then runs all tasks.
inline void run_attention(Exec& exec, const Attention& work, const std::vector<KeyBlock>& blocks,
                          const std::vector<AttentionTask>& tasks, int64_t kv_heads) {
  const int64_t count = static_cast<int64_t>(blocks.size());
  const Tensor packed = allocate(DType::f32, {count * kv_heads, work.block_floats()});
  float* panels = packed.data<float>();
  exec.pool.for_each(count * kv_heads, 4, [&](int64_t i) {
    work.pack_block(panels + i * work.block_floats(), blocks[static_cast<size_t>(i % count)], i / count);
  });
  exec.total = static_cast<int64_t>(tasks.size());
  exec.pool.for_each(static_cast<int64_t>(tasks.size()), 1, [&](int64_t i) {
    work.run(tasks[static_cast<size_t>(i)], panels, count);
    ++exec.done;
  });
}

}  // namespace lpq::nn
