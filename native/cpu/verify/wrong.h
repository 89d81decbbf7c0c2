// The first wrong value of a tensor and how many there are; the same whichever worker saw it first.
#pragma once
#include <cstdint>
#include <mutex>

#include "lpq/arguments.h"

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
    int64_t* out = info.data<int64_t>();
    out[0] = all_.count, out[1] = all_.row, out[2] = all_.column, out[3] = all_.got, out[4] = all_.expected;
  }

 private:
  std::mutex mutex_;
  Wrong all_;
};

// Where a report goes.
inline const Tensor& report_output(Arguments& a, const char* name) { return a.output(name, {DType::i64}, {5}); }

// body(row, wrong) for all rows, `grain` at a time, and what they found.
template <class Body>
void report_rows(Exec& exec, int64_t rows, int64_t grain, const Tensor& info, const Body& body) {
  WrongReport report;
  exec.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
    Wrong wrong;
    for (int64_t row = begin; row < end; ++row) body(row, wrong);
    report.merge(wrong);
  });
  report.write(info);
}

// order I32 [K] of columns that there are.
inline const int32_t* checked_order(const Tensor& order) {
  const int32_t* columns = order.data<int32_t>();
  for (int64_t j = 0; j < order.elements(); ++j)
    require(columns[j] >= 0 && columns[j] < order.elements(), "the order stays inside K");
  return columns;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace lpq::verify
