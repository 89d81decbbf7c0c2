// A row's error as a function of its scales, its codes fixed: s^T A s - 2 b^T s + const, A_gh = v_g M v_h^T, b_g =
// v_g M t^T, v = level - zero (GptqRefit, ops/gptq.h).
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/linalg/packed_matrix.h"
#include "lpq/exec.h"
#include "ops/gptq.h"

namespace lpq::gptq {

struct Quadratic {
  const double *a, *b;  // [groups, groups], symmetric; [groups]
  int64_t groups;

  template <class S>
  double operator()(S&& s) const {
    double sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      double line = -2 * b[g];
      for (int64_t h = 0; h < groups; ++h) line += a[g * groups + h] * s(h);
      sum += line * s(g);
    }
    return sum;
  }
};

// M with its columns sorted by group, packed for products with rows of v.
class GroupedMetric {
 public:
  GroupedMetric(Exec& exec, const float* m, const int32_t* group, int64_t k, int64_t groups, Products products);

  int64_t k() const { return static_cast<int64_t>(columns_.size()); }
  int64_t groups() const { return static_cast<int64_t>(start_.size()) - 1; }
  // The c-th sorted column; sorted columns from(g) .. from(g + 1) are those of group g.
  int64_t column(int64_t c) const { return columns_[static_cast<size_t>(c)]; }
  int64_t from(int64_t g) const { return start_[static_cast<size_t>(g)]; }
  int64_t width(int64_t g) const { return from(g + 1) - from(g); }
  // Rows that one product takes at most, and floats that it works in.
  int64_t rows() const { return rows_; }
  size_t scratch() const;
  // to[m, k - from(g)] = v[m, width(g)] times M's rows of group g, sorted columns from(g) on; rows ld apart in both.
  void multiply(int64_t g, const float* v, int64_t m, float* to, int64_t ld, float* scratch) const;

 private:
  int64_t rows_;
  std::vector<int64_t> columns_, start_;
  std::vector<std::vector<linalg::PackedMatrix>> panels_;  // of every group, kDepth of its rows each
};

// Makes the quadratics of a few rows at a time, on the calling thread and in its caches.
class Quadratics {
 public:
  // tm [N,K] = T M.
  Quadratics(const ops::GptqRefit& of, const float* tm, const GroupedMetric& metric)
      : of_(of), tm_(tm), metric_(metric), scratch_(metric.scratch()) {}

  void make(int64_t row0, int64_t rows);
  // Of row row0 + r of the last make().
  Quadratic at(int64_t r) const {
    const int64_t groups = metric_.groups();
    return {&a_[static_cast<size_t>(r * groups * groups)], &b_[static_cast<size_t>(r * groups)], groups};
  }

 private:
  void read(int64_t row, float* v, double* b);
  void add_group(int64_t h, int64_t row0, int64_t rows);

  const ops::GptqRefit& of_;
  const float* tm_;
  const GroupedMetric& metric_;
  std::vector<float> v_, product_, scratch_;
  std::vector<double> a_, b_;
};

}  // namespace lpq::gptq
