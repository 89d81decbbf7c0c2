// tune_refit_grid.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cpu/checks.h"
#include "cpu/gptq/kernels.h"
#include "cpu/quant/scale.h"
#include "ops/tune.h"

namespace lpq::tune {
namespace {

// How a row's error changes where a group's weights change by a (level - zero) + b: 2 (a p + b q) + a^2 A + 2 a b B +
// b^2 C.
struct Change {
  double p, q, a, b, c;

  double operator()(double by, double shift) const {
    return 2 * (by * p + shift * q) + by * by * a + 2 * by * shift * b + shift * shift * c;
  }
};

struct Choice {
  float scale, zero;
  double gain = 0;

  // Weights were (level - was_zero) * was, and become (level - z) * s.
  void attempt(const Change& change, float was, float was_zero, float s, float z) {
    const double by = static_cast<double>(s) - was, shift = static_cast<double>(s) * (was_zero - z);
    const double gained = -change(by, shift);
    if (gained > gain) *this = {s, z, gained};
  }
};

void next_scales(const ops::TuneRefitGrid& a, const Change& change, Choice& choice, float s, float z) {
  std::byte code{};
  write_number(a.dtype, &code, 0, s / a.unit);
  for (const int up : {-1, 1}) {
    const std::byte other = static_cast<std::byte>(std::to_integer<int>(code) + up);
    const float scale = read_number(a.dtype, &other, 0) * a.unit;
    if (std::isfinite(scale) && scale > 0) choice.attempt(change, s, z, scale, z);
  }
}

void next_zeros(const ops::TuneRefitGrid& a, const Change& change, Choice& choice, float s, float z) {
  for (const float up : {-1.0f, 1.0f}) {
    const float zero = z + up;
    if (zero < a.type.min_value() || zero > a.type.max_value()) continue;
    // The weights change by (s + x)(level - z - up) - s (level - z): a quadratic in x.
    const double d = -up;
    const double square = change.a + 2 * d * change.b + d * d * change.c;
    const double line = change.p + d * change.q + s * d * (change.b + d * change.c);
    if (!(square > 0)) continue;
    std::byte stored[4];
    const float scale = write_number(a.dtype, stored, 0, static_cast<float>(s - line / square));
    const float ratio = scale / s;
    if (ratio > 0.5f && ratio < 2.0f) choice.attempt(change, s, z, scale, zero);
  }
}

void refit_grid(Call& call, Exec& exec) {
  const ops::TuneRefitGrid a(call);
  const auto [n, k, length, groups] = a.of;
  const float *m = a.m.data<float>(), *level = a.level.data<float>(), *r = a.r.data<float>();
  float *scale = a.scale.data<float>(), *zero = a.zero.data<float>();
  // Sums of M over the columns of a row's group, and over the group.
  std::vector<double> ones(static_cast<size_t>(k)), all(static_cast<size_t>(groups), 0.0);
  for (int64_t j = 0; j < k; ++j) {
    const int64_t first = j / length * length;
    double sum = 0;
    for (int64_t i = first; i < first + length; ++i) sum += static_cast<double>(m[j * k + i]);
    ones[static_cast<size_t>(j)] = sum;
    all[static_cast<size_t>(j / length)] += sum;
  }
  const auto dot = gptq::kernels().dot;
  std::vector<uint32_t> moved(static_cast<size_t>(n), 0);
  exec.pool.parallel_for(n, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> off(static_cast<size_t>(k)), v(static_cast<size_t>(length));
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(r + row * k, k, off.data());
      for (int64_t g = 0; g < groups; ++g) {
        float &s = scale[row * groups + g], &z = zero[row * groups + g];
        const int64_t first = g * length;
        Change change{0, 0, 0, 0, all[static_cast<size_t>(g)]};
        for (int64_t i = 0; i < length; ++i) v[static_cast<size_t>(i)] = level[row * k + first + i] - z;
        change.p = dot(v.data(), off.data() + first, length);
        for (int64_t i = 0; i < length; ++i) {
          const double own = v[static_cast<size_t>(i)];
          change.q += static_cast<double>(off[static_cast<size_t>(first + i)]);
          change.b += own * ones[static_cast<size_t>(first + i)];
          if (own != 0) change.a += own * dot(m + (first + i) * k + first, v.data(), length);
        }
        Choice choice{s, z};
        if (a.zeros) next_zeros(a, change, choice, s, z);
        else next_scales(a, change, choice, s, z);
        if (!(choice.gain > 0)) continue;
        ++moved[static_cast<size_t>(row)];
        for (int64_t i = 0; i < length; ++i) {
          const float code = level[row * k + first + i];
          const float by = (code - choice.zero) * choice.scale - (code - z) * s;
          const float* line = m + (first + i) * k;
          if (by != 0)
            for (int64_t j = 0; j < k; ++j) off[static_cast<size_t>(j)] += by * line[j];
        }
        s = choice.scale;
        z = choice.zero;
      }
    }
  });
  double count = 0;
  for (const uint32_t each : moved) count += each;
  *a.moved.data<double>() = count;
}

LPQ_OP(refit_grid, "tune_refit_grid");

}  // namespace
}  // namespace lpq::tune
