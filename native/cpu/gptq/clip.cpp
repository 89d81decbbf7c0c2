// gptq_clip: a scale and a zero point for every group, by search in the Hessian's metric.
//
// The grid is clipped at p times the group's range and the candidate that minimises e M_gg e^T is kept (MARLIN section
// 3.5 searches by squared error; the metric is that of its code), e = rounded - T. M_gg is the group's diagonal block.
// Groups longer than 128 use the diagonal blocks of 128 columns inside them, which keeps the cost at 128 products a
// weight. M_gg is symmetric: what lies above its diagonal counts twice, what lies below is left out. With bf16 a first
// look at all candidates takes products in bf16, and those in fp32 decide among the cheapest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/gptq/kernels.h"
#include "cpu/linalg/packed_matrix.h"
#include "cpu/quant/scale.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

constexpr int64_t kTile = 128;  // columns of one diagonal block
constexpr int64_t kRows = 16;   // rows of a task
constexpr int kFinalists = 8;   // candidates that fp32 decides among: neighbours differ by less than bf16 tells apart

struct Search {
  bool symmetric, both_signs;
  float constant_zero;
  int steps;
  double shrink;
  DType scale_dtype;
  float unit;
  float low, high;  // levels the type reaches (floats: where the largest magnitude is put)

  int candidates() const { return steps * (symmetric && both_signs ? 2 : 1); }

  bool coarse() const { return scale_dtype == DType::f8_e8m0 || scale_dtype == DType::f8_e4m3; }

  // With a second level, e4m3 may go down to its subnormals.
  float least() const { return scale_dtype == DType::f8_e4m3 ? 0x1p-9f : least_scale(scale_dtype); }

  // The nearest scale that the stored type can hold, where it is coarse.
  float usable(float scale) const {
    if (!coarse()) return scale;
    std::byte stored[1];
    const float held = write_number(scale_dtype, stored, 0, std::max(scale / unit, least()));
    return held * unit;
  }

  // Candidate i for a group with extremes lo <= hi; scale is never 0.
  void candidate(int i, float lo, float hi, float& scale, float& zero) const {
    const bool negative = i >= steps;
    // Powers of two: the candidates start above the ideal scale, so that the one that saturates nothing is among them.
    const double p = (1.0 - (negative ? i - steps : i) * shrink) * (scale_dtype == DType::f8_e8m0 ? 1.4142 : 1.0);
    if (lo == 0 && hi == 0) {
      // Where no code is 0 (u1: +-scale/2), the least scale that every stored type holds, for weights as near to 0 as
      // can be.
      const bool no_zero = symmetric && constant_zero != std::floor(constant_zero);
      scale = usable(!no_zero ? 1.0f : coarse() ? 0.0f : 0x1p-14f);
      zero = symmetric ? constant_zero : std::max(low, 0.0f);
      return;
    }
    if (symmetric) {
      const float most = std::max(std::fabs(lo), std::fabs(hi));
      // An integer grid spans high - low steps around its zero; a float grid reaches `high` on both sides.
      const double reach = constant_zero != 0.0f || low != -high ? 0.5 * (high - low) : high;
      scale = static_cast<float>(p * most / reach);
      zero = constant_zero;
    } else {
      lo = std::min(lo, 0.0f);
      hi = std::max(hi, 0.0f);
      scale = static_cast<float>(p * (static_cast<double>(hi) - lo) / (high - low));
      zero = 0;
    }
    scale = usable(scale);
    if (!symmetric) {
      const double z = low + std::nearbyint(-p * lo / scale);
      zero = static_cast<float>(std::min<double>(std::max<double>(z, low), high));
    }
    if (negative) scale = -scale;
  }
};

// A diagonal block of M: of `columns` from `first` on.
struct Metric {
  int64_t first, width;
  linalg::PackedMatrix exact, rough;
};

// Of every group, its diagonal blocks of kTile columns.
std::vector<std::vector<Metric>> metrics_of(Exec& exec, const std::vector<std::vector<int64_t>>& members,
                                            const float* m, int64_t k, Products rough) {
  std::vector<std::vector<Metric>> all(members.size());
  exec.pool.for_each(static_cast<int64_t>(members.size()), 1, [&](int64_t g) {
    const auto& columns = members[static_cast<size_t>(g)];
    const int64_t length = static_cast<int64_t>(columns.size());
    std::vector<float> block(static_cast<size_t>(kTile * kTile));
    for (int64_t first = 0; first < length; first += kTile) {
      const int64_t width = std::min(kTile, length - first);
      for (int64_t a = 0; a < width; ++a)
        for (int64_t b = 0; b < width; ++b) {
          const float value = m[columns[static_cast<size_t>(first + a)] * k + columns[static_cast<size_t>(first + b)]];
          block[static_cast<size_t>(a * width + b)] = a < b ? 2 * value : a == b ? value : 0;
        }
      const auto packed = [&](Products products) {
        return linalg::PackedMatrix(block.data(), width, width, width, products, linalg::PackedMatrix::Shape::upper);
      };
      all[static_cast<size_t>(g)].push_back({first, width, packed(Products::f32), packed(rough)});
    }
  });
  return all;
}

// The candidates of one row's group, and what each costs. Everything it works on stays in a core's caches.
class Candidates {
 public:
  Candidates(const QuantType& type, const Search& search)
      : type_(type),
        search_(search),
        count_(search.candidates()),
        scale_(static_cast<size_t>(count_)),
        zero_(scale_.size()),
        cost_(scale_.size()),
        weights_(static_cast<size_t>(kTile)) {}

  void begin(const float* row, const std::vector<int64_t>& columns) {
    float lo = std::numeric_limits<float>::infinity(), hi = -lo;
    for (int64_t j : columns) {
      lo = std::min(lo, row[j]);
      hi = std::max(hi, row[j]);
    }
    for (int i = 0; i < count_; ++i) {
      const size_t at = static_cast<size_t>(i);
      search_.candidate(i, lo, hi, scale_[at], zero_[at]);
      cost_[at] = 0;
    }
  }

  // Adds e M_gg e^T of a part of the group's columns to every candidate's cost.
  void add(const float* row, const std::vector<int64_t>& columns, const Metric& metric) {
    take(row, columns, metric);
    for (int i = 0; i < count_; i += metric.rough.rows())
      price(metric.rough, metric.width, std::min(metric.rough.rows(), count_ - i), [&](int r) { return i + r; });
  }

  // Leaves the cheapest in the race, at no cost so far.
  void shortlist() {
    finalists_.resize(cost_.size());
    std::iota(finalists_.begin(), finalists_.end(), 0);
    const auto end = finalists_.begin() + std::min(count_, kFinalists);
    std::partial_sort(finalists_.begin(), end, finalists_.end(),
                      [&](int i, int j) { return std::pair(cost(i), i) < std::pair(cost(j), j); });
    finalists_.erase(end, finalists_.end());
    std::fill(cost_.begin(), cost_.end(), std::numeric_limits<double>::infinity());
    for (int i : finalists_) cost(i) = 0;
  }

  // add() in fp32, for those that are left.
  void add_exactly(const float* row, const std::vector<int64_t>& columns, const Metric& metric) {
    take(row, columns, metric);
    const int count = static_cast<int>(finalists_.size());
    for (int i = 0; i < count; i += metric.exact.rows())
      price(metric.exact, metric.width, std::min(metric.exact.rows(), count - i),
            [&](int r) { return finalists_[static_cast<size_t>(i + r)]; });
  }

  // The first of the cheapest.
  void best(float& scale, float& zero) const {
    const size_t at = static_cast<size_t>(std::min_element(cost_.begin(), cost_.end()) - cost_.begin());
    scale = scale_[at];
    zero = zero_[at];
  }

 private:
  double& cost(int i) { return cost_[static_cast<size_t>(i)]; }

  void take(const float* row, const std::vector<int64_t>& columns, const Metric& metric) {
    for (int64_t a = 0; a < metric.width; ++a)
      weights_[static_cast<size_t>(a)] = row[columns[static_cast<size_t>(metric.first + a)]];
  }

  // Adds to the costs of `rows` candidates, the r-th of which is which(r).
  template <class Which>
  void price(const linalg::PackedMatrix& matrix, int64_t width, int rows, Which which) {
    residual_.resize(static_cast<size_t>(matrix.rows() * width));
    product_.resize(residual_.size());
    scratch_.resize(std::max(scratch_.size(), matrix.scratch()));
    for (int r = 0; r < rows; ++r) {
      const size_t i = static_cast<size_t>(which(r));
      kernel_.residual(type_, weights_.data(), scale_[i], zero_[i], &residual_[static_cast<size_t>(r * width)], width);
    }
    matrix.multiply(residual_.data(), width, rows, product_.data(), width, scratch_.data());
    for (int r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(r * width);
      cost(which(r)) += kernel_.dot(&residual_[at], &product_[at], width);
    }
  }

  const QuantType& type_;
  const Search& search_;
  const Kernels& kernel_ = kernels();
  int count_;
  std::vector<float> scale_, zero_;
  std::vector<double> cost_;
  std::vector<int> finalists_;
  std::vector<float> weights_, residual_, product_, scratch_;
};

void clip(Call& call, Exec& exec) {
  const ops::GptqClip a(call);
  const int64_t n = a.problem.n, k = a.problem.k, groups = a.problem.groups;
  const float *t = a.problem.t.data<float>(), *m = a.problem.matrix.data<float>();
  const int32_t* group = a.problem.group.data<int32_t>();
  float *scale_of = a.problem.scale.data<float>(), *zero_of = a.problem.zero.data<float>();
  const QuantType& type = a.type;
  const bool is_float = type.kind == QuantType::Kind::floating;
  const Search search{a.symmetric,
                      a.both_signs,
                      a.constant_zero,
                      a.steps,
                      a.shrink,
                      a.scale_dtype,
                      a.unit,
                      is_float ? -type.top() : type.min_value(),
                      is_float ? type.top() : type.max_value()};

  std::vector<std::vector<int64_t>> members(static_cast<size_t>(groups));
  for (int64_t j = 0; j < k; ++j) {
    require(group[j] >= 0 && group[j] < groups, "group holds an index outside the scales");
    members[static_cast<size_t>(group[j])].push_back(j);
  }
  const auto metrics = metrics_of(exec, members, m, k, products_of(a.bf16));
  // A group's rows follow each other, so that its metric stays in the cache.
  const int64_t parts = (n + kRows - 1) / kRows;
  exec.pool.for_each(groups * parts, 1, [&](int64_t task) {
    const int64_t g = task / parts, row0 = task % parts * kRows;
    const auto& columns = members[static_cast<size_t>(g)];
    Candidates tried(type, search);
    for (int64_t row = row0; row < std::min(n, row0 + kRows); ++row) {
      tried.begin(t + row * k, columns);
      const float* own = t + row * k;
      for (const Metric& metric : metrics[static_cast<size_t>(g)]) tried.add(own, columns, metric);
      if (a.bf16) {
        tried.shortlist();
        for (const Metric& metric : metrics[static_cast<size_t>(g)]) tried.add_exactly(own, columns, metric);
      }
      tried.best(scale_of[row * groups + g], zero_of[row * groups + g]);
    }
  });
}

LPQ_OP(clip, "gptq_clip");

}  // namespace
}  // namespace lpq::gptq
