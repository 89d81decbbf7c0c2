// The first wrong value of a tensor and how many there are; the same whichever worker saw it first.
#pragma once
#include <cstdint>
#include <mutex>

#include "lpq/exec.h"

namespace lpq::verify {

struct Wrong {
  int64_t count = 0, row = -1, column = -1, got = 0, expected = 0;

  void see(int64_t r, int64_t c, int64_t g, int64_t e) {
    if (count == 0 || r < row || (r == row && c < column)) row = r, column = c, got = g, expected = e;
    ++count;
  }
  void merge(const Wrong& other) {
    if (other.count == 0) return;
    const int64_t sum = count + other.count;
    if (count == 0 || other.row < row || (other.row == row && other.column < column)) *this = other;
    count = sum;
  }
};

// Collects what parallel chunks found, and writes it into I64 [5]: count, row, column, got, expected.
class WrongReport {
 public:
  void merge(const Wrong& wrong) {
    std::lock_guard lock(mutex_);
    all_.merge(wrong);
  }
  void write(const Tensor& info) const {
    require(info.elements() == 5, "info has five elements");
    int64_t* out = info.data<int64_t>();
    out[0] = all_.count, out[1] = all_.row, out[2] = all_.column, out[3] = all_.got, out[4] = all_.expected;
  }

 private:
  std::mutex mutex_;
  Wrong all_;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace lpq::verify
