#include "cpu/gptq/quadratic.h"

#include <algorithm>

#include "cpu/gptq/kernels.h"

namespace lpq::gptq {
namespace {

constexpr int64_t kDepth = 512;  // rows of M in one packed matrix

}  // namespace

GroupedMetric::GroupedMetric(Exec& exec, const float* m, const int32_t* group, int64_t k, int64_t groups,
                             Products products)
    : rows_(linalg::PackedMatrix::rows(products)),
      columns_(static_cast<size_t>(k)),
      start_(static_cast<size_t>(groups) + 1, 0),
      panels_(static_cast<size_t>(groups)) {
  for (int64_t j = 0; j < k; ++j) {
    require(group[j] >= 0 && group[j] < groups, "group holds an index outside the scales");
    ++start_[static_cast<size_t>(group[j]) + 1];
  }
  for (int64_t g = 0; g < groups; ++g) start_[static_cast<size_t>(g) + 1] += from(g);
  auto next = start_;
  for (int64_t j = 0; j < k; ++j) columns_[static_cast<size_t>(next[static_cast<size_t>(group[j])]++)] = j;
  exec.pool.for_each(groups, 1, [&](int64_t g) {
    const int64_t wide = k - from(g);
    std::vector<float> lines(static_cast<size_t>(std::min(kDepth, width(g)) * wide));
    for (int64_t first = from(g); first < from(g + 1); first += kDepth) {
      const int64_t depth = std::min(kDepth, from(g + 1) - first);
      for (int64_t i = 0; i < depth; ++i) {
        const float* line = m + column(first + i) * k;
        for (int64_t j = 0; j < wide; ++j) lines[static_cast<size_t>(i * wide + j)] = line[column(from(g) + j)];
      }
      panels_[static_cast<size_t>(g)].emplace_back(lines.data(), depth, wide, wide, products);
    }
  });
}

size_t GroupedMetric::scratch() const {
  size_t most = 0;
  for (const auto& group : panels_)
    for (const auto& panel : group) most = std::max(most, panel.scratch());
  return most;
}

void GroupedMetric::multiply(int64_t g, const float* v, int64_t m, float* to, int64_t ld, float* scratch) const {
  const auto& panels = panels_[static_cast<size_t>(g)];
  for (size_t i = 0; i < panels.size(); ++i)
    panels[i].multiply(v + static_cast<int64_t>(i) * kDepth, ld, static_cast<int>(m), to, ld, scratch, i > 0);
}

void Quadratics::make(int64_t row0, int64_t rows) {
  const int64_t k = metric_.k(), groups = metric_.groups(), tile = metric_.rows();
  v_.resize(static_cast<size_t>(rows * k));
  product_.resize(static_cast<size_t>(tile * k));
  a_.assign(static_cast<size_t>(rows * groups * groups), 0);
  b_.resize(static_cast<size_t>(rows * groups));
  for (int64_t r = 0; r < rows; ++r)
    read(row0 + r, &v_[static_cast<size_t>(r * k)], &b_[static_cast<size_t>(r * groups)]);
  // All rows meet a group's part of M while it is in the cache.
  for (int64_t h = 0; h < groups; ++h)
    for (int64_t r = 0; r < rows; r += tile) add_group(h, r, std::min(tile, rows - r));
}

void Quadratics::read(int64_t row, float* v, double* b) {
  const int64_t k = metric_.k(), groups = metric_.groups();
  const float *level = of_.level.data<float>() + row * k, *zero = of_.problem.zero.data<float>() + row * groups;
  float* target = product_.data();
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = metric_.from(g); c < metric_.from(g + 1); ++c) {
      v[c] = level[metric_.column(c)] - zero[g];
      target[c] = tm_[row * k + metric_.column(c)];
    }
    b[g] = kernels().dot(v + metric_.from(g), target + metric_.from(g), metric_.width(g));
  }
}

// A's column h and, since A is symmetric, its row h.
void Quadratics::add_group(int64_t h, int64_t row0, int64_t rows) {
  const int64_t k = metric_.k(), groups = metric_.groups(), from = metric_.from(h);
  if (metric_.width(h) == 0) return;
  metric_.multiply(h, &v_[static_cast<size_t>(row0 * k + from)], rows, product_.data(), k, scratch_.data());
  for (int64_t r = 0; r < rows; ++r) {
    const float *v = &v_[static_cast<size_t>((row0 + r) * k)], *product = &product_[static_cast<size_t>(r * k)];
    double* a = &a_[static_cast<size_t>((row0 + r) * groups * groups)];
    for (int64_t g = h; g < groups; ++g)
      a[g * groups + h] = a[h * groups + g] =
          kernels().dot(v + metric_.from(g), product + metric_.from(g) - from, metric_.width(g));
  }
}

}  // namespace lpq::gptq
