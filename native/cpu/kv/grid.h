// The numbers of a group of keys or values (formats/kv/spec.md, Numbers).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lpq/failure.h"
#include "lpq/half.h"

namespace lpq::kv {

// A cache holds f16: what does not fit there is no key and no value. Throws LPQ_NATIVE_NUMERICS.
inline float finite_half(uint16_t bits) {
  const float v = f16_to_f32(bits);
  if (!std::isfinite(v)) throw Failure("LPQ_NATIVE_NUMERICS", "a key or value is NaN, infinite or beyond f16");
  return v;
}

struct Group {
  uint16_t scale, zero;
  float low, step, top;

  // high - low is exact or rounded once in fp32; the stored scale divides, so that both directions use one number.
  Group(float low_, float high, float top_)
      : scale(f32_to_f16((high - low_) / top_)),
        zero(f32_to_f16(low_)),
        low(low_),
        step(f16_to_f32(scale)),
        top(top_) {}
  // Nearest, ties to even; of what lies beyond an end, that end's.
  float steps(float v) const {
    const float above = step > 0 ? std::min(std::max((v - low) / step, 0.0f), top) : 0.0f;
    return (above + 12582912.0f) - 12582912.0f;
  }
  uint8_t code(float v) const { return static_cast<uint8_t>(steps(v)); }
};

struct Ends {
  float low, high;
};

// Ends of a grid for the `count` numbers x(i), from `low` to `high`, of the least squared error among those tried
// (formats/kv/spec.md, Fitted ends). In fp64, one number after another: the verifier has the same bits.
template <class X>
Ends fitted_ends(float low, float high, float top, int64_t count, X&& x) {
  constexpr int kShares = 5, kRounds = 2;
  constexpr double kShare = 0.025;
  const double range = static_cast<double>(high) - low, n = static_cast<double>(count);
  const auto half = [](double v) { return f16_to_f32(f32_to_f16(static_cast<float>(v))); };
  // Numbers and codes side by side: the compiler then makes several codes at once.
  std::vector<float> numbers(static_cast<size_t>(count)), steps(numbers.size());
  for (size_t j = 0; j < numbers.size(); ++j) numbers[j] = x(static_cast<int64_t>(j));
  Ends best{low, high};
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kShares * kShares; ++i) {
    double from = low + kShare * (i / kShares) * range, to = high - kShare * (i % kShares) * range;
    for (int round = 0; round <= kRounds; ++round) {
      const Ends ends{half(from), half(to)};
      if (!(ends.high > ends.low) || !std::isfinite(ends.low) || !std::isfinite(ends.high)) break;
      const Group g(ends.low, ends.high, top);
      for (size_t j = 0; j < numbers.size(); ++j) steps[j] = g.steps(numbers[j]);
      double error = 0, codes = 0, squares = 0, sum = 0, products = 0;
      for (size_t j = 0; j < numbers.size(); ++j) {
        const double v = numbers[j], code = steps[j], off = code * g.step + g.low - v, over = v - low;
        error += off * off, codes += code, squares += code * code, sum += over, products += code * over;
      }
      if (error < least) least = error, best = ends;
      // The line over codes of least squares; codes follow it in the next round.
      const double spread = n * squares - codes * codes;
      if (!(spread > 0)) break;
      const double step = (n * products - codes * sum) / spread;
      from = (sum - step * codes) / n + low, to = from + top * step;
    }
  }
  return best;
}

}  // namespace lpq::kv
