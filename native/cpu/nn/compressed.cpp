// compress, compressed_attention.
#include "ops/compressed.h"

#include "cpu/nn/attention.h"
#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

// First tokens of the sequences, and the first entries. Throws Failure("LPQ_NATIVE_ARGUMENT") where there are not
// `entries` in all.
struct Runs {
  std::vector<int64_t> start, entry;

  Runs(const Tensor& starts, int64_t tokens, int64_t rate, int64_t entries) : start(sequence_starts(starts, tokens)) {
    entry.push_back(0);
    for (size_t s = 0; s + 1 < start.size(); ++s)
      entry.push_back(entry.back() + (rate > 0 ? (start[s + 1] - start[s]) / rate : 0));
    require(entry.back() == entries,
            "there are " + std::to_string(entries) + " entries, not " + std::to_string(entry.back()));
  }
};

void compress(Call& call, Exec& exec) {
  const ops::Compress a(call);
  const int64_t width = a.x.dim(1), dim = a.y.dim(1), series = width / dim;
  const Runs runs(a.starts, a.x.dim(0), a.rate, a.y.dim(0));
  const std::vector<float> bias = widened(a.bias);
  for (size_t s = 0; s + 1 < runs.start.size(); ++s)
    exec.pool.for_each(runs.entry[s + 1] - runs.entry[s], 1, [&](int64_t w) {
      const int64_t earlier = series == 2 && w > 0 ? a.rate : 0;  // tokens of the run before
      const int64_t first = runs.start[s] + w * a.rate - earlier, count = a.rate + earlier;
      float* y = a.y.data<float>() + (runs.entry[s] + w) * dim;
      std::vector<double> logit(static_cast<size_t>(count));
      for (int64_t c = 0; c < dim; ++c) {
        const auto column = [&](int64_t j) { return series == 2 && j >= earlier ? dim + c : c; };
        double most = -std::numeric_limits<double>::infinity(), sum = 0, made = 0;
        for (int64_t j = 0; j < count; ++j) {
          const int64_t at = (first + j) * width + column(j);
          const size_t place = static_cast<size_t>((j - earlier + a.rate) % a.rate * width + column(j));
          logit[static_cast<size_t>(j)] =
              static_cast<double>(a.gate.data<float>()[at]) + static_cast<double>(bias[place]);
          most = std::max(most, logit[static_cast<size_t>(j)]);
        }
        for (int64_t j = 0; j < count; ++j) {
          const double share = std::exp(logit[static_cast<size_t>(j)] - most);
          sum += share;
          made += share * static_cast<double>(a.x.data<float>()[(first + j) * width + column(j)]);
        }
        y[c] = static_cast<float>(made / sum);
      }
    });
}

void compressed_attention(Call& call, Exec& exec) {
  const ops::CompressedAttention a(call);
  const int64_t dim = a.k.dim(1), tokens = a.q.dim(0);
  const Runs runs(a.starts, tokens, a.rate, a.entries.dim(0));
  const std::vector<float> sinks = attention_sinks(&a.sinks, a.heads);
  const VectorKernels& rows = vector_kernels();
  for (size_t s = 0; s + 1 < runs.start.size(); ++s)
    exec.pool.parallel_for(runs.start[s + 1] - runs.start[s], 1, [&](int64_t begin, int64_t end, int) {
      std::vector<const float*> seen;
      std::vector<float> scores;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = runs.start[s] + i, full = a.rate > 0 ? (i + 1) / a.rate : 0;
        const float* entries = a.entries.data<float>() + runs.entry[s] * dim;
        seen.clear();
        for (int64_t u = std::max<int64_t>(0, i - a.window + 1); u <= i; ++u)
          seen.push_back(a.k.data<float>() + (runs.start[s] + u) * dim);
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
          for (size_t j = 0; j < seen.size(); ++j) scores[j] = a.scale * rows.dot(q, seen[j], dim);
          float sink = sinks[static_cast<size_t>(h)];
          const float most = std::max(sink, rows.maximum(scores.data(), count));
          rows.exponentials(&sink, most, &sink, 1);
          const float sum = sink + rows.exponentials(scores.data(), most, scores.data(), count);
          float* y = a.y.data<float>() + (t * a.heads + h) * dim;
          std::fill(y, y + dim, 0.0f);
          for (size_t j = 0; j < seen.size(); ++j) rows.add_scaled(y, seen[j], scores[j], y, dim);
          rows.scale(y, 1.0f / sum, y, dim);
        }
      }
    });
}

}  // namespace
LPQ_OP(compress, "compress");
LPQ_OP(compressed_attention, "compressed_attention");
}  // namespace lpq::nn
