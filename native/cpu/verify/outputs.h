// Outputs of an emulated kernel against sums in double precision: the first one that is further off than it may be, the
// same whichever worker saw it first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "cpu/verify/stream.h"

namespace lpq::verify {

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
