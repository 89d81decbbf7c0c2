// index_keys, selected_attention: sparse attention, one query at a time.
#include "ops/selected.h"

#include <functional>

#include "cpu/nn/attention.h"
#include "cpu/nn/recurrence.h"
#include "cpu/nn/selected.h"

namespace lpq::nn {
namespace {

// A query's place: the first row of its sequence's keys, how many it sees, and how many there are.
struct Place {
  int64_t row, visible, length;
};

// That of every token. `rows`: of keys in a slot; 0 where the keys are those of the tokens.
std::vector<Place> places(const Tensor& starts, const Tensor* slots, const Tensor* totals, int64_t tokens,
                          int64_t rows) {
  const std::vector<int64_t> start = sequence_starts(starts, tokens);
  std::vector<Place> found(static_cast<size_t>(tokens));
  for (size_t s = 0; s + 1 < start.size(); ++s) {
    const int64_t count = start[s + 1] - start[s];
    int64_t row = start[s], earlier = 0, length = count;
    if (slots) {
      const int64_t total = totals->data<int32_t>()[s];
      require(total >= count && total <= rows, "sequence " + std::to_string(s) + " has length " +
                                                   std::to_string(total) + ", not " + std::to_string(count) + " to " +
                                                   std::to_string(rows));
      row = slots->data<int32_t>()[s] * rows;
      earlier = total - count, length = total;
    }
    for (int64_t i = 0; i < count; ++i) found[static_cast<size_t>(start[s] + i)] = {row, earlier + i + 1, length};
  }
  return found;
}

// Those of tokens among the keys of full runs, the new ones of which are put to the earlier ones.
std::vector<Place> places_of_runs(const ops::IndexKeys& a, const std::vector<Run>& all) {
  std::vector<Place> found;
  const int64_t dim = a.k.dim(1), rows = a.past.state ? a.past.state->dim(1) : 0;
  int64_t row = 0;
  for (size_t s = 0; s < all.size(); ++s) {
    const int64_t count = all[s].count, total = a.past.totals ? a.past.totals->data<int32_t>()[s] : count;
    const int64_t before = (total - count) / a.rate, made = total / a.rate - before;
    const int64_t first = a.past.slots ? a.past.slots->data<int32_t>()[s] * rows : row;
    require(row + made <= a.k.dim(0) && (!a.past.state || total / a.rate <= rows),
            "k or its rows do not hold the runs of sequence " + std::to_string(s));
    for (int64_t i = total - count; i < total; ++i) found.push_back({first, (i + 1) / a.rate, total / a.rate});
    if (all[s].state) std::copy_n(a.k.data<float>() + row * dim, made * dim, all[s].state + before * dim);
    row += made;
  }
  require(row == a.k.dim(0), "k has " + std::to_string(a.k.dim(0)) + " runs, not " + std::to_string(row));
  return found;
}

using Scored = std::pair<double, int32_t>;

// What a thread chooses with: a score of each run of the sequence, minus infinity where it is not seen yet.
struct Scores {
  std::vector<double> of, sorted;
  std::vector<Scored> named;
};

// The `top` best of more runs, by index; `seen`: how many are. Where the last of them has equals PyTorch takes those
// that the standard library leaves in front, of the whole row with what is not seen yet; whoever compares with it finds
// the same here.
void choose(Scores& scores, int64_t seen, int64_t top, int32_t* y) {
  const std::vector<double>& of = scores.of;
  scores.sorted.assign(of.begin(), of.begin() + static_cast<ptrdiff_t>(seen));
  const auto last = scores.sorted.begin() + static_cast<ptrdiff_t>(top) - 1;
  std::nth_element(scores.sorted.begin(), last, scores.sorted.end(), std::greater<>());
  const double least = *last;
  if (std::find(last + 1, scores.sorted.end(), least) == scores.sorted.end()) {
    for (int32_t i = 0, made = 0; made < top; ++i)
      if (of[static_cast<size_t>(i)] >= least) y[made++] = i;
    return;
  }
  scores.named.clear();
  for (size_t i = 0; i < of.size(); ++i) scores.named.emplace_back(of[i], static_cast<int32_t>(i));
  const auto better = [](const Scored& a, const Scored& b) { return a.first > b.first; };
  const auto begin = scores.named.begin(), end = begin + static_cast<ptrdiff_t>(top);
  if (static_cast<size_t>(top) * 64 <= of.size()) std::partial_sort(begin, end, scores.named.end(), better);
  else std::nth_element(begin, end - 1, scores.named.end(), better);
  for (int64_t i = 0; i < top; ++i) y[i] = begin[i].second;
  std::sort(y, y + top);
}

// Scores of all runs for one choice: that of `head`, or with `weights` of all heads together.
void score(const ops::IndexKeys& a, const float* q, const float* weights, int64_t head, const float* keys,
           const Place& place, std::vector<double>& scores) {
  const int64_t dim = a.k.dim(1), visible = place.visible, runs = (visible + a.block - 1) / a.block;
  const VectorKernels& rows = vector_kernels();
  scores.assign(static_cast<size_t>((place.length + a.block - 1) / a.block), -std::numeric_limits<double>::infinity());
  const int64_t heads = weights ? a.heads : 1;
  std::vector<const float*> queries;
  for (int64_t h = 0; h < heads; ++h) queries.push_back(q + (weights ? h : head) * dim);
  std::vector<float> products(static_cast<size_t>(heads));
  for (int64_t s = 0; s < visible; ++s) {
    rows.dots(keys + s * dim, queries.data(), heads, products.data(), dim);
    double made = weights ? 0 : static_cast<double>(products[0]);
    if (weights)
      for (int64_t h = 0; h < heads; ++h)
        made += static_cast<double>(weights[h]) * static_cast<double>(std::max(0.0f, products[static_cast<size_t>(h)]));
    if (std::isnan(made)) throw Failure("LPQ_NATIVE_NUMERICS", "a score of the indexer is NaN");
    double& best = scores[static_cast<size_t>(s / a.block)];
    best = std::max(best, made);
  }
  for (int64_t i = std::max<int64_t>(0, runs - a.local); i < runs; ++i)
    scores[static_cast<size_t>(i)] = std::numeric_limits<double>::infinity();
}

void index_keys(Call& call, Exec& exec) {
  const ops::IndexKeys a(call);
  const int64_t tokens = a.q.dim(0), dim = a.k.dim(1), width = a.y.dim(1);
  const std::vector<Run> all = runs(a.past, tokens);
  const int64_t rows = a.past.state ? a.past.state->dim(1) : 0;
  const std::vector<Place> place =
      a.rate > 1 ? places_of_runs(a, all) : places(a.past.starts, a.past.slots, a.past.totals, tokens, rows);
  const float* keys = a.past.state ? a.past.state->data<float>() : a.k.data<float>();
  for (const Run& run : all)
    if (a.rate == 1 && run.state && run.count > 0) {
      const int64_t earlier = place[static_cast<size_t>(run.first)].visible - 1;
      const float* from = a.k.data<float>() + run.first * dim;
      std::copy(from, from + run.count * dim, run.state + earlier * dim);
    }
  exec.pool.parallel_for(tokens, 4, [&](int64_t begin, int64_t end, int) {
    Scores scores;
    for (int64_t t = begin; t < end; ++t) {
      const Place& at = place[static_cast<size_t>(t)];
      const int64_t visible = at.visible;
      int32_t* y = a.y.data<int32_t>() + t * width;
      if (const int64_t runs = (visible + a.block - 1) / a.block; runs <= a.top) {  // all, whatever their scores
        for (int64_t i = 0; i < width; ++i) y[i] = i % a.top < runs ? static_cast<int32_t>(i % a.top) : -1;
        continue;
      }
      for (int64_t c = 0; c < a.choices; ++c) {
        score(a, a.q.data<float>() + t * a.q.dim(1), a.weights ? a.weights->data<float>() + t * a.heads : nullptr, c,
              keys + at.row * dim, at, scores.of);
        choose(scores, (visible + a.block - 1) / a.block, a.top, y + c * a.top);
      }
    }
  });
}

void selected_attention(Call& call, Exec& exec) {
  const ops::SelectedAttention a(call);
  const ops::AttentionShape& of = a.shape;
  const int64_t tokens = a.q.dim(0), top = a.selected.dim(1) / a.choices, share = of.heads / a.choices;
  const std::vector<Place> place = places(a.starts, a.slots, a.totals, tokens, a.kept ? a.k.dim(1) : 0);
  if (a.slots)
    for (int64_t s = 0; s < a.slots->dim(0); ++s) {
      const int32_t slot = a.slots->data<int32_t>()[s];
      require(slot >= 0 && slot < a.k.dim(0), "there is no slot " + std::to_string(slot));
    }
  const VectorKernels& rows = vector_kernels();
  exec.pool.parallel_for(tokens, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<int64_t> seen;
    std::vector<const float*> keys, values;
    std::vector<float> scores, wide_keys, wide_values;
    // Rows of keys or values in f32, of those that are seen.
    const auto rows_of = [&](const Tensor& x, int64_t first, int64_t pitch, int64_t column, int64_t width,
                             std::vector<float>& wide, std::vector<const float*>& found) {
      found.clear();
      if (x.dtype != DType::f32) wide.resize(seen.size() * static_cast<size_t>(width));
      for (size_t i = 0; i < seen.size(); ++i) {
        const int64_t at = (first + seen[i]) * pitch + column;
        if (x.dtype == DType::f32) {
          found.push_back(x.data<float>() + at);
          continue;
        }
        float* to = wide.data() + i * static_cast<size_t>(width);
        widen(x, at, width, to);
        found.push_back(to);
      }
    };
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = place[static_cast<size_t>(t)].row, visible = place[static_cast<size_t>(t)].visible;
      for (int64_t head = 0; head < of.heads; ++head) {
        const bool again = head % share != 0;
        if (!again)
          named(a.selected.data<int32_t>() + t * a.selected.dim(1) + head / share * top, top, a.block, visible, seen);
        const int64_t group = of.heads / of.kv_heads, kv = head / group, count = static_cast<int64_t>(seen.size());
        if (!again || head % group == 0) {
          rows_of(a.k, first, of.keys(), kv * of.head_dim, of.head_dim, wide_keys, keys);
          rows_of(a.v, first, of.values(), kv * of.value_dim, of.value_dim, wide_values, values);
        }
        const float* q = a.q.data<float>() + t * of.queries() + head * of.head_dim;
        scores.resize(seen.size());
        rows.dots(q, keys.data(), count, scores.data(), of.head_dim);
        rows.scale(scores.data(), of.scale, scores.data(), count);
        const float sum = rows.exponentials(scores.data(), rows.maximum(scores.data(), count), scores.data(), count);
        float* y = a.y.data<float>() + t * of.outputs() + head * of.value_dim;
        rows.sum_rows(values.data(), scores.data(), count, y, of.value_dim);
        rows.scale(y, 1.0f / sum, y, of.value_dim);
      }
    }
  });
}

}  // namespace
LPQ_OP(index_keys, "index_keys");
LPQ_OP(selected_attention, "selected_attention");
}  // namespace lpq::nn
