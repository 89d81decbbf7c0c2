// Steps and rates of selective scans, for the operation and its gradient.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/nn/recurrence.h"

namespace lpq::nn {

// softplus(step + bias) of every token, within its bounds.
template <class Scan>
std::vector<float> scan_steps(const Scan& a, Exec& exec) {
  const int64_t width = a.step.dim(1);
  const std::vector<float> bias = widened(a.bias);
  std::vector<float> made(static_cast<size_t>(a.step.elements()));
  exec.pool.for_each(a.step.dim(0), 8, [&](int64_t t) {
    for (int64_t i = 0; i < width; ++i) {
      const double at = static_cast<double>(a.step.template data<float>()[t * width + i]) +
                        static_cast<double>(bias[static_cast<size_t>(i)]);
      made[static_cast<size_t>(t * width + i)] = static_cast<float>(std::min(std::max(softplus(at), a.least), a.most));
    }
  });
  return made;
}

// -exp(rate): of heads [heads], of channels [parts, size, kStateColumns] in the order of a state's columns.
template <class Scan>
std::vector<float> scan_rates(const Scan& a) {
  const std::vector<float> given = widened(a.rate);
  const auto rate = [&](int64_t i) {
    return static_cast<float>(-std::exp(static_cast<double>(given[static_cast<size_t>(i)])));
  };
  std::vector<float> made;
  if (!a.by_channel) {
    for (int64_t h = 0; h < a.heads; ++h) made.push_back(rate(h));
    return made;
  }
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t first = 0; first < a.head_dim; first += kStateColumns)
      for (int64_t n = 0; n < a.size; ++n)
        for (int64_t p = first; p < first + kStateColumns; ++p)
          made.push_back(p < a.head_dim ? rate((h * a.head_dim + p) * a.size + n) : 0.0f);
  return made;
}

}  // namespace lpq::nn
