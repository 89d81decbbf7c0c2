// Outputs of an emulated kernel of MARLIN's arithmetic against sums in double precision: how far they may be, and the
// first one that is further; the same whichever worker saw it first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "cpu/verify/stream.h"

namespace lpq::verify {

// One output in double precision. plain: with scales of whole rows, the sum before the scale; input: sum |x|.
struct ExactOutput {
  double sum = 0, size = 0, plain = 0, plain_size = 0, input = 0;
};

// How far y may be from `exact.sum` after K fused steps in fp32. u = 2^-11 and h = 2^-25 for a rounding to fp16
// (relative, and absolute where subnormal); g = K e/(1 - K e), e = 2^-24, for the steps; f = (K + 4) 2^-53 for the
// reference's own fp64 sum. Columns that are padding or pruned count in K, which only widens it.
inline double output_bound(const ExactOutput& exact, int64_t k, bool per_channel, double scale) {
  constexpr double u = 0x1p-11, h = 0x1p-25, e = 0x1p-24;
  const double steps = static_cast<double>(k), g = steps * e / (1 - steps * e), f = (steps + 4) * 0x1p-53;
  if (per_channel) {
    // Scales meet the result: y = fp16(fp16(acc) * s). |acc - plain| <= g * plain_size.
    const double acc = g * exact.plain_size, before = scale * (acc + u * (std::fabs(exact.plain) + acc) + h);
    return before + u * (std::fabs(exact.sum) + before) + h + f * exact.size;
  }
  // Each weight is rounded once, fp16((q - 8) * s): off by at most u |w| + h. Then K fused steps, then fp16.
  const double weights = u * exact.size + h * exact.input, acc = weights + g * (exact.size + weights);
  return acc + u * (std::fabs(exact.sum) + acc) + h + f * exact.size;
}

struct WorstOutput {
  int64_t count = 0, row = -1, column = -1;
  double got = 0, expected = 0, bound = 0, ratio = 0;

  void see(int64_t m, int64_t n, double value, double exact, double may) {
    const double error = std::fabs(value - exact);
    if (std::isinf(value) && std::fabs(exact) + may >= 65504 && std::signbit(value) == std::signbit(exact))
      return;  // beyond f16
    if (!(error <= may)) merge({1, m, n, value, exact, may, 0});
    ratio = std::max(ratio, error / may);
  }
  void merge(const WorstOutput& other) {
    const double top = std::max(ratio, other.ratio);
    const int64_t sum = count + other.count;
    if (other.count && (count == 0 || other.column < column || (other.column == column && other.row < row)))
      *this = other;
    count = sum;
    ratio = top;
  }
};

// Collects what parallel chunks found, and writes it into F64 [7]: count, m, n, got, expected, bound, and the largest
// error / bound.
class OutputReport {
 public:
  void merge(const WorstOutput& worst) {
    std::lock_guard lock(mutex_);
    all_.merge(worst);
  }
  void write(const Tensor& outputs) const {
    double* out = outputs.data<double>();
    out[0] = static_cast<double>(all_.count), out[1] = static_cast<double>(all_.row),
    out[2] = static_cast<double>(all_.column);
    out[3] = all_.got, out[4] = all_.expected, out[5] = all_.bound, out[6] = all_.ratio;
  }

 private:
  std::mutex mutex_;
  WorstOutput all_;
};

}  // namespace lpq::verify
