// The gradient of attention (Dao et al. 2022, arXiv:2205.14135, algorithm 4, with rows of scores kept whole): scores
// are computed again for kRows queries at a time, over all keys that they see.
//
// A sequence's keys of one kv head are one task, which takes its query heads and their queries in order, so that sums
// have one order whatever the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/nn/attention.h"
#include "cpu/nn/selected.h"
#include "ops/backward.h"

namespace lpq::nn {
namespace {

constexpr int64_t kRows = 112;  // a multiple of the row counts of all kernels' tiles

// On this thread, packed into memory of its own.
class Multiplier {
 public:
  // c[m,n] = (add ? c : 0) + a b; a of elements (i, p), b of elements (j, p), one fma chain over k.
  void into(float* c, int64_t ldc, int64_t m, int64_t n, int64_t k, const float* a, int64_t a_i, int64_t a_p,
            const float* b, int64_t b_j, int64_t b_p, bool add, Products products) {
    const auto& kernel = linalg::kernels_of(products);
    const int64_t mr = kernel.mr, nr = kernel.nr, rows = (m + mr - 1) / mr, depth = kernel.depth(k);
    const int64_t stride = depth * mr + linalg::kPanelPad;
    float* const a_panels = a_.get<float>(static_cast<size_t>(rows * stride));
    float* const b_panel = b_.get<float>(static_cast<size_t>(depth * nr + linalg::kPanelPad));
    for (int64_t i = 0; i < m; i += mr)
      kernel.pack(a_panels + i / mr * stride, {a + i * a_i, DType::f32, a_i, a_p},
                  static_cast<int>(std::min(mr, m - i)), static_cast<int>(mr), k, 1.0f);
    for (int64_t j = 0; j < n; j += nr) {
      const int cols = static_cast<int>(std::min(nr, n - j));
      kernel.pack(b_panel, {b + j * b_j, DType::f32, b_j, b_p}, cols, static_cast<int>(nr), k, 1.0f);
      for (int64_t i = 0; i < m; i += mr)
        kernel.tile(k, a_panels + i / mr * stride, b_panel, c + i * ldc + j, ldc, static_cast<int>(std::min(mr, m - i)),
                    cols, add);
    }
  }

 private:
  linalg::Scratch a_, b_;
};

class Backward {
 public:
  Backward(const ops::AttentionBackward& of, std::vector<float> sinks) : of_(of), sinks_(std::move(sinks)) {}

  // One kv head of the sequence of tokens [first, first + length).
  void run(int64_t first, int64_t length, int64_t kv_head) const {
    const ops::AttentionShape& s = of_.shape;
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t t = first; t < first + length; ++t) {
      std::fill_n(of_.dk.data<float>() + t * s.keys() + kv_head * s.head_dim, s.head_dim, 0.0f);
      std::fill_n(of_.dv.data<float>() + t * s.values() + kv_head * s.value_dim, s.value_dim, 0.0f);
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (int64_t query = 0; query < length; query += kRows)
        block(first, query, std::min(kRows, length - query), head, kv_head);
  }

 private:
  void block(int64_t first, int64_t query, int64_t queries, int64_t head, int64_t kv_head) const {
    const ops::AttentionShape& s = of_.shape;
    const int64_t hd = s.head_dim, vd = s.value_dim;
    const int64_t begin = s.window > 0 ? std::max<int64_t>(0, query - s.window + 1) : 0;
    const int64_t keys = query + queries - begin;
    static thread_local Multiplier multiplier;
    static thread_local linalg::Scratch scratch;
    float* const p = scratch.get<float>(static_cast<size_t>(queries * (keys * (s.cap > 0 ? 3 : 2) + hd)));
    float *const dp = p + queries * keys, *const scaled = dp + queries * keys, *const capped = scaled + queries * hd;
    const int64_t row = first + query, key = first + begin;
    const int64_t q_row = s.queries(), k_row = s.keys(), v_row = s.values(), y_row = s.outputs();
    const float* q = of_.q.data<float>() + row * q_row + head * hd;
    const float* k = of_.k.data<float>() + key * k_row + kv_head * hd;
    const float* v = of_.v.data<float>() + key * v_row + kv_head * vd;
    const float* dy = of_.dy.data<float>() + row * y_row + head * vd;

    const Products products = products_of(of_.bf16);
    for (int64_t i = 0; i < queries; ++i) vector_kernels().scale(q + i * q_row, s.scale, scaled + i * hd, hd);
    multiplier.into(p, keys, queries, keys, hd, scaled, hd, 1, k, k_row, 1, false, products);
    if (s.cap > 0) {
      vector_kernels().soft_cap(p, s.cap, p, queries * keys);
      std::copy(p, p + queries * keys, capped);
    }
    multiplier.into(dp, keys, queries, keys, vd, dy, y_row, 1, v, v_row, 1, false, products);
    for (int64_t i = 0; i < queries; ++i) softmax(p + i * keys, dp + i * keys, first, query + i, begin, keys, head);
    multiplier.into(of_.dv.data<float>() + key * v_row + kv_head * vd, v_row, keys, vd, queries, p, 1, keys, dy, 1,
                    y_row, true, products);
    if (s.cap > 0)
      for (int64_t i = 0; i < queries * keys; ++i) {
        const float share = capped[i] / s.cap;
        dp[i] *= 1.0f - share * share;
      }
    multiplier.into(of_.dk.data<float>() + key * k_row + kv_head * hd, k_row, keys, hd, queries, dp, 1, keys, scaled, 1,
                    hd, true, products);
    float* const dq = of_.dq.data<float>() + row * q_row + head * hd;
    multiplier.into(dq, q_row, queries, hd, keys, dp, keys, 1, k, 1, k_row, false, products);
    for (int64_t i = 0; i < queries; ++i) vector_kernels().scale(dq + i * q_row, s.scale, dq + i * q_row, hd);
  }

  // A row of scores becomes probabilities, and that of their gradient the scores'.
  void softmax(float* p, float* dp, int64_t first, int64_t token, int64_t begin, int64_t keys, int64_t head) const {
    if (of_.chosen) return chosen(p, dp, first, token, keys, head);
    const int64_t window = of_.shape.window;
    const int64_t low = window > 0 ? std::max<int64_t>(0, token - window + 1 - begin) : 0, high = token + 1 - begin;
    const VectorKernels& rows = vector_kernels();
    float peak = rows.maximum(p + low, high - low), more = 0;
    if (!sinks_.empty()) {
      const float sink = sinks_[static_cast<size_t>(head)];
      peak = std::max(peak, sink);
      more = sink;
      rows.exponentials(&more, peak, &more, 1);
    }
    rows.softmax_backward(p + low, dp + low, peak, more, high - low);
    for (float* each : {p, dp}) {
      std::fill(each, each + low, 0.0f);
      std::fill(each + high, each + keys, 0.0f);
    }
  }

  // Of the keys that the token sees, and 0 for all others.
  void chosen(float* p, float* dp, int64_t first, int64_t token, int64_t keys, int64_t head) const {
    const int64_t width = of_.selected->dim(1), top = width / of_.choices, share = of_.shape.heads / of_.choices;
    static thread_local std::vector<int64_t> seen;
    named(of_.selected->data<int32_t>() + (first + token) * width + head / share * top, top, of_.block, token + 1,
          seen);
    static thread_local std::vector<float> scores, slopes;
    scores.clear(), slopes.clear();
    for (const int64_t s : seen) scores.push_back(p[s]), slopes.push_back(dp[s]);
    const int64_t count = static_cast<int64_t>(seen.size());
    const VectorKernels& rows = vector_kernels();
    rows.softmax_backward(scores.data(), slopes.data(), rows.maximum(scores.data(), count), 0, count);
    std::fill_n(p, keys, 0.0f);
    std::fill_n(dp, keys, 0.0f);
    for (size_t i = 0; i < seen.size(); ++i) p[seen[i]] = scores[i], dp[seen[i]] = slopes[i];
  }

  const ops::AttentionBackward& of_;
  std::vector<float> sinks_;
};

void attention_backward(Call& call, Exec& exec) {
  const ops::AttentionBackward a(call);
  const std::vector<int64_t> starts = sequence_starts(a.starts, a.q.dim(0));
  const Backward work(a, attention_sinks(a.sinks, a.shape.heads));
  const int64_t tasks = static_cast<int64_t>(starts.size() - 1) * a.shape.kv_heads;
  exec.total = tasks;
  exec.pool.for_each(tasks, 1, [&](int64_t i) {
    const size_t s = static_cast<size_t>(i / a.shape.kv_heads);
    work.run(starts[s], starts[s + 1] - starts[s], i % a.shape.kv_heads);
    ++exec.done;
  });
}

}  // namespace
LPQ_OP(attention_backward, "attention_backward");
}  // namespace lpq::nn
