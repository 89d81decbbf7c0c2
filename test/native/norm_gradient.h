// The gradient of a norm in double precision, and how far fp32 may be from it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lpq::test {

struct NormGradients {
  std::vector<double> want, bound;
};

// Of rows of n, `gain` of turns rows, eps as f32 holds it; `old` (where not empty) is added to. Bounds are sums of the
// roundings that lead to an element, u = 2^-24 each, a row's sums made by threads, 32 lanes and at most 32 warps.
inline NormGradients norm_gradients(bool layer, size_t n, size_t turns, double eps, const std::vector<double>& x,
                                    const std::vector<double>& dy, const std::vector<double>& gain,
                                    const std::vector<double>& old) {
  constexpr double u = 0x1p-24;
  NormGradients made;
  const double count = static_cast<double>(n), m = std::max(56.0, count / 512 + 24);  // additions in a row of a sum
  std::vector<double> h(n), c(n);
  for (size_t first = 0; n > 0 && first < x.size(); first += n) {
    double mean = 0, size_of = 0, square = 0, of_h = 0, size_h = 0, along = 0, size_along = 0;
    for (size_t i = 0; i < n && layer; ++i) mean += x[first + i] / count, size_of += std::fabs(x[first + i]) / count;
    for (size_t i = 0; i < n; ++i) {
      h[i] = gain[first / n % turns * n + i] * dy[first + i], c[i] = x[first + i] - mean;
      square += c[i] * c[i] / count;
      if (layer) of_h += h[i] / count, size_h += std::fabs(h[i]) / count;
      along += h[i] * c[i] / count, size_along += std::fabs(h[i] * c[i]) / count;
    }
    const double r = 1 / std::sqrt(square + eps), slip = (m + 1) * u * size_of;  // of the mean
    const double of_r = (0.5 * (m + 5) + 4) * u + 0.5 * slip * slip * r * r;     // relative
    const double by = along * r * r, of_by = r * r * ((m + 9) * u * size_along + slip * size_h + 2 * of_r * size_along);
    for (size_t i = 0; i < n; ++i) {
      const double a = std::fabs(h[i]), b = std::fabs(c[i]), gradient = r * (h[i] - of_h - by * c[i]);
      const double bound =
          r * (4 * u * (a + size_h) + (m + 3) * u * size_h + b * of_by + (std::fabs(by) + of_by) * (2 * u * b + slip)) +
          (of_r + 2 * u) * std::fabs(gradient);
      const double before = old.empty() ? 0 : old[first + i];
      made.want.push_back(before + gradient);
      made.bound.push_back(1.01 * bound + (old.empty() ? 0 : u * (std::fabs(before) + std::fabs(gradient))));
    }
  }
  return made;
}

}  // namespace lpq::test
