// compress, append_rows, compressed_attention.
#include "ops/compressed.h"

#include "cpu/nn/attention.h"
#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

// A sequence of a call: its new tokens, how many come before them, and its first new entry.
struct Sequence {
  Run run;
  int64_t earlier, entry;
};

// Those of a past. Throws Failure("LPQ_NATIVE_ARGUMENT") where there are not `entries` in all.
std::vector<Sequence> sequences(const ops::Recurrence& past, int64_t tokens, int64_t rate, int64_t entries) {
  std::vector<Sequence> found;
  int64_t entry = 0;
  const std::vector<Run> all = runs(past, tokens);
  for (size_t s = 0; s < all.size(); ++s) {
    const int64_t total = past.totals ? past.totals->data<int32_t>()[s] : all[s].count;
    found.push_back({all[s], total - all[s].count, entry});
    entry += total / rate - (total - all[s].count) / rate;
  }
  require(entry == entries, "there are " + std::to_string(entries) + " entries, not " + std::to_string(entry));
  return found;
}

void compress(Call& call, Exec& exec) {
  const ops::Compress a(call);
  const int64_t width = a.x.dim(1), dim = a.y.dim(1), kept = a.series * a.rate;
  const std::vector<float> bias = widened(a.bias);
  for (const auto& [run, earlier, entry] : sequences(a.past, a.x.dim(0), a.rate, a.y.dim(0))) {
    // x and gate of a token by its place in the sequence: among those of the call, or in the slot.
    const auto row = [&, from = run.first, before = earlier, state = run.state](int64_t place, bool gate) {
      if (place >= before) return (gate ? a.gate : a.x).data<float>() + (from + place - before) * width;
      return state + (place % kept * 2 + (gate ? 1 : 0)) * width;
    };
    const int64_t first_run = earlier / a.rate, end_run = (earlier + run.count) / a.rate;
    exec.pool.for_each(end_run - first_run, 1, [&, to = a.y.data<float>() + entry * dim](int64_t made_run) {
      const int64_t w = first_run + made_run, before = a.series == 2 && w > 0 ? a.rate : 0;  // tokens of the run before
      const int64_t first = w * a.rate - before, count = a.rate + before;
      float* y = to + made_run * dim;
      std::vector<double> logit(static_cast<size_t>(count));
      for (int64_t c = 0; c < dim; ++c) {
        const auto column = [&](int64_t j) { return a.series == 2 && j >= before ? dim + c : c; };
        double most = -std::numeric_limits<double>::infinity(), sum = 0, made = 0;
        for (int64_t j = 0; j < count; ++j) {
          const size_t place = static_cast<size_t>((j - before + a.rate) % a.rate * width + column(j));
          logit[static_cast<size_t>(j)] =
              static_cast<double>(row(first + j, true)[column(j)]) + static_cast<double>(bias[place]);
          most = std::max(most, logit[static_cast<size_t>(j)]);
        }
        for (int64_t j = 0; j < count; ++j) {
          const double share = std::exp(logit[static_cast<size_t>(j)] - most);
          sum += share;
          made += share * static_cast<double>(row(first + j, false)[column(j)]);
        }
        y[c] = static_cast<float>(made / sum);
      }
    });
    if (!run.state) continue;
    for (int64_t i = std::max<int64_t>(0, run.count - kept); i < run.count; ++i) {
      float* slot = run.state + (earlier + i) % kept * 2 * width;
      std::copy_n(row(earlier + i, false), width, slot);
      std::copy_n(row(earlier + i, true), width, slot + width);
    }
  }
}

void append_rows(Call& call, Exec&) {
  const ops::AppendRows a(call);
  const int64_t width = a.x.dim(1), rows = a.past.state->dim(1);
  const std::vector<Run> all = runs(a.past, a.x.dim(0));
  for (size_t s = 0; s < all.size(); ++s) {
    const int64_t total = a.past.totals->data<int32_t>()[s];
    require(total <= rows, "sequence " + std::to_string(s) + " has length " + std::to_string(total) + ", more than " +
                               std::to_string(rows) + " rows");
    std::copy_n(a.x.data<float>() + all[s].first * width, all[s].count * width,
                all[s].state + (total - all[s].count) * width);
  }
}

// Where a sequence's keys and entries begin, which new tokens it has, and how many come before them.
struct Place {
  int64_t key, entry, first, count, earlier;
};

std::vector<Place> places(const ops::CompressedAttention& a) {
  const std::vector<int64_t> start = sequence_starts(a.starts, a.q.dim(0));
  std::vector<Place> found;
  int64_t entry = 0;
  for (size_t s = 0; s + 1 < start.size(); ++s) {
    const int64_t count = start[s + 1] - start[s], runs = a.rate > 0 ? count / a.rate : 0;
    found.push_back({start[s], entry, start[s], count, 0});
    entry += runs;
    if (!a.kept) continue;
    const int64_t slot = a.slots->data<int32_t>()[s], total = a.totals->data<int32_t>()[s], rows = a.k.dim(1);
    const int64_t entries = a.rate > 0 ? a.entries.dim(1) : 0, name = static_cast<int64_t>(s);
    require(slot >= 0 && slot < a.k.dim(0), "there is no slot " + std::to_string(slot));
    require(
        total >= count && total <= rows && (a.rate == 0 || total / a.rate <= entries),
        "sequence " + std::to_string(name) + " has length " + std::to_string(total) + ", which its rows do not hold");
    found.back() = {slot * rows, slot * entries, start[s], count, total - count};
  }
  require(a.kept || entry == a.entries.dim(0),
          "there are " + std::to_string(a.entries.dim(0)) + " entries, not " + std::to_string(entry));
  return found;
}

void compressed_attention(Call& call, Exec& exec) {
  const ops::CompressedAttention a(call);
  const int64_t dim = a.dim;
  const std::vector<float> sinks = attention_sinks(&a.sinks, a.heads);
  const VectorKernels& rows = vector_kernels();
  for (const Place& at : places(a))
    exec.pool.parallel_for(at.count, 1, [&](int64_t begin, int64_t end, int) {
      std::vector<const float*> seen;
      std::vector<float> scores;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = at.first + i, own = at.earlier + i, full = a.rate > 0 ? (own + 1) / a.rate : 0;
        const float* entries = a.entries.data<float>() + at.entry * dim;
        seen.clear();
        for (int64_t u = std::max<int64_t>(0, own - a.window + 1); u <= own; ++u)
          seen.push_back(a.k.data<float>() + (at.key + u) * dim);
        if (a.chosen) {
          const int64_t top = a.selected->dim(1);
          for (int64_t j = 0; j < top; ++j) {
            const int64_t e = a.selected->data<int32_t>()[t * top + j];
            require(e >= -1 && e < full,
                    "selected has " + std::to_string(e) + " where " + std::to_string(full) + " can be seen");
            if (e >= 0) seen.push_back(entries + e * dim);
          }
        } else {
          for (int64_t e = 0; e < full; ++e) seen.push_back(entries + e * dim);
        }
        const int64_t count = static_cast<int64_t>(seen.size());
        scores.resize(seen.size());
        for (int64_t h = 0; h < a.heads; ++h) {
          const float* q = a.q.data<float>() + (t * a.heads + h) * dim;
          rows.dots(q, seen.data(), count, scores.data(), dim);
          rows.scale(scores.data(), a.scale, scores.data(), count);
          float sink = sinks[static_cast<size_t>(h)];
          const float most = std::max(sink, rows.maximum(scores.data(), count));
          rows.exponentials(&sink, most, &sink, 1);
          const float sum = sink + rows.exponentials(scores.data(), most, scores.data(), count);
          float* y = a.y.data<float>() + (t * a.heads + h) * dim;
          rows.sum_rows(seen.data(), scores.data(), count, y, dim);
          rows.scale(y, 1.0f / sum, y, dim);
        }
      }
    });
}

}  // namespace
LPQ_OP(compress, "compress");
LPQ_OP(append_rows, "append_rows");
LPQ_OP(compressed_attention, "compressed_attention");
}  // namespace lpq::nn
