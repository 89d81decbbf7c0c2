// Attention of queries that read the same keys and values, over rows that a reader hands out one by one.
//
// Arithmetic, in T: a score is one fma chain over the head's dims, times scale; weights are exp(score - the largest);
// numerator and denominator are chains over the tokens, oldest first, the denominator's begins with the sink, and are
// divided once.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace lpq::kv {

constexpr auto kNoSink = [](int64_t) { return -std::numeric_limits<double>::infinity(); };

// y [queries][dim]. seen(n): how many tokens, from the first on, query n reads; 0: y is 0. query(n, d): its numbers;
// keys(t, row) and values(t, row) write the dim numbers of token t. sink(n): a logit that has no value.
template <class T, class Seen, class Query, class Keys, class Values, class Sink = decltype(kNoSink)>
void attend_rows(int64_t queries, int64_t dim, double scale, Seen seen, Query query, Keys keys, Values values, T* y,
                 Sink sink = kNoSink) {
  std::fill_n(y, queries * dim, T{0});
  int64_t tokens = 0;
  for (int64_t n = 0; n < queries; ++n) tokens = std::max<int64_t>(tokens, seen(n));
  if (tokens == 0) return;
  std::vector<T> row(static_cast<size_t>(dim)), scores(static_cast<size_t>(queries * tokens)),
      total(static_cast<size_t>(queries), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    keys(t, row.data());
    for (int64_t n = 0; n < queries; ++n) {
      if (t >= seen(n)) continue;
      T sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum = std::fma(static_cast<T>(query(n, d)), row[static_cast<size_t>(d)], sum);
      scores[static_cast<size_t>(n * tokens + t)] = sum * static_cast<T>(scale);
    }
  }
  for (int64_t n = 0; n < queries; ++n) {
    T *const p = scores.data() + n * tokens, *const end = p + seen(n);
    const T most = p == end ? T{0} : std::max(*std::max_element(p, end), static_cast<T>(sink(n)));
    total[static_cast<size_t>(n)] = std::exp(static_cast<T>(sink(n)) - most);
    for (T* s = p; s < end; ++s) total[static_cast<size_t>(n)] += * s = std::exp(*s - most);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    values(t, row.data());
    for (int64_t n = 0; n < queries; ++n)
      if (t < seen(n))
        for (int64_t d = 0; d < dim; ++d)
          y[n * dim + d] =
              std::fma(scores[static_cast<size_t>(n * tokens + t)], row[static_cast<size_t>(d)], y[n * dim + d]);
  }
  for (int64_t n = 0; n < queries; ++n)
    if (seen(n) > 0)
      for (int64_t d = 0; d < dim; ++d) y[n * dim + d] /= total[static_cast<size_t>(n)];
}

}  // namespace lpq::kv
