// gptq_refit: the scales that fit fixed codes best, and module_error: how far the result is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/gptq/kernels.h"
#include "cpu/linalg/gemm.h"
#include "lpq/two_level.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

// Solves (A + ridge) x = b by Cholesky in place; false when A is not positive definite.
bool solve_spd(double* a, double* b, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    double d = a[j * n + j];
    for (int64_t p = 0; p < j; ++p) d -= a[j * n + p] * a[j * n + p];
    if (!(d > 0)) return false;
    d = std::sqrt(d);
    a[j * n + j] = d;
    for (int64_t i = j + 1; i < n; ++i) {
      double s = a[i * n + j];
      for (int64_t p = 0; p < j; ++p) s -= a[i * n + p] * a[j * n + p];
      a[i * n + j] = s / d;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p < i; ++p) b[i] -= a[i * n + p] * b[p];
    b[i] /= a[i * n + i];
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t p = i + 1; p < n; ++p) b[i] -= a[p * n + i] * b[p];
    b[i] /= a[i * n + i];
  }
  return true;
}

// A row's error as a function of its scales: s^T A s - 2 b^T s.
struct Quadratic {
  const double *a, *b;
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

// Two-level scales near the unconstrained optimum: factors by coordinate descent, and the number of the row that fits
// them best, by turns.
class TwoLevelRefit {
 public:
  TwoLevelRefit(DType dtype, int64_t groups)
      : grid_(dtype == DType::f16 ? TwoLevel::f16() : TwoLevel::f32()),
        energy_(static_cast<size_t>(groups)),
        factors_(energy_) {}

  // scale [groups]: on the grid, and still on it afterwards; `free`: the optimum without it. False: this is no better.
  bool improve(const Quadratic& cost, const double* free, float* scale) {
    const int64_t groups = cost.groups;
    for (int64_t g = 0; g < groups; ++g) energy_[static_cast<size_t>(g)] = cost.a[g * groups + g] * free[g] * free[g];
    const double largest = TwoLevel::largest(free, energy_.data(), groups);
    if (largest == 0) return false;
    TwoLevel::Try best{1.0, std::numeric_limits<double>::infinity()};
    for (int i = 0; i < TwoLevel::kTries; ++i) {
      const TwoLevel::Try now = grid_.attempt(free, energy_.data(), groups, largest, i);
      if (now.price < best.price) best = now;
    }
    double c = best.channel;
    for (int64_t g = 0; g < groups; ++g)
      factors_[static_cast<size_t>(g)] =
          energy_[static_cast<size_t>(g)] > 0 ? TwoLevel::factor(free[g] / c, free[g]) : 1;
    for (int round = 0; round < kRounds; ++round) {
      const bool moved = descend(cost, c);
      const double fitted = channel(cost, c);
      if (!moved && fitted == c) break;
      c = fitted;
    }
    const auto now = [&](int64_t g) { return factors_[static_cast<size_t>(g)] * c; };
    if (!(cost(now) < cost([&](int64_t g) { return static_cast<double>(scale[g]); }))) return false;
    for (int64_t g = 0; g < groups; ++g) scale[g] = static_cast<float>(now(g));
    return true;
  }

 private:
  static constexpr int kRounds = 4;

  // Each factor to its best value given all others.
  bool descend(const Quadratic& cost, double c) {
    bool moved = false;
    for (int64_t g = 0; g < cost.groups; ++g) {
      const double* line = cost.a + g * cost.groups;
      if (!(line[g] > 0)) continue;
      double pull = cost.b[g];
      for (int64_t h = 0; h < cost.groups; ++h)
        if (h != g) pull -= line[h] * factors_[static_cast<size_t>(h)] * c;
      double& factor = factors_[static_cast<size_t>(g)];
      const double to = TwoLevel::factor(pull / (line[g] * c), factor);
      moved |= to != factor;
      factor = to;
    }
    return moved;
  }

  // The number of the row that fits the factors best.
  double channel(const Quadratic& cost, double c) const {
    double square = 0, line = 0;
    for (int64_t g = 0; g < cost.groups; ++g) {
      line += cost.b[g] * factors_[static_cast<size_t>(g)];
      for (int64_t h = 0; h < cost.groups; ++h)
        square += factors_[static_cast<size_t>(g)] * cost.a[g * cost.groups + h] * factors_[static_cast<size_t>(h)];
    }
    return square > 0 && line > 0 ? grid_.channel(line / square) : c;
  }

  TwoLevel grid_;
  std::vector<double> energy_, factors_;
};

void refit(Call& call, Exec& exec) {
  const ops::GptqRefit of(call);
  const int64_t n = of.problem.n, k = of.problem.k, groups = of.problem.groups;
  const float *t = of.problem.t.data<float>(), *m = of.problem.matrix.data<float>(), *level = of.level.data<float>(),
              *zero = of.problem.zero.data<float>();
  const int32_t* group = of.problem.group.data<int32_t>();
  const float* tm = of.tm ? of.tm->data<float>() : nullptr;
  float* scale = of.problem.scale.data<float>();

  // Columns sorted by group: the quadratic form then falls into contiguous blocks.
  std::vector<int64_t> columns(static_cast<size_t>(k)), start(static_cast<size_t>(groups) + 1, 0);
  for (int64_t j = 0; j < k; ++j) {
    require(group[j] >= 0 && group[j] < groups, "group holds an index outside the scales");
    ++start[static_cast<size_t>(group[j]) + 1];
  }
  for (int64_t g = 0; g < groups; ++g) start[static_cast<size_t>(g) + 1] += start[static_cast<size_t>(g)];
  {
    auto next = start;
    for (int64_t j = 0; j < k; ++j) columns[static_cast<size_t>(next[static_cast<size_t>(group[j])]++)] = j;
  }
  std::vector<float> sorted(static_cast<size_t>(k * k));
  exec.pool.for_each(k, 16, [&](int64_t a) {
    for (int64_t b = 0; b < k; ++b)
      sorted[static_cast<size_t>(a * k + b)] = m[columns[static_cast<size_t>(a)] * k + columns[static_cast<size_t>(b)]];
  });

  const int64_t chunk = std::max<int64_t>(16, std::min<int64_t>(n, (int64_t{1} << 23) / std::max(k, groups * groups)));
  const size_t area = static_cast<size_t>(std::min(chunk, n) * k);
  std::vector<float> v(area), target(tm ? 0 : area), product(area);
  std::vector<double> a(static_cast<size_t>(std::min(chunk, n) * groups * groups)),
      b(static_cast<size_t>(std::min(chunk, n) * groups));
  std::vector<uint8_t> better(static_cast<size_t>(n), 0);
  const Kernels& kernel = kernels();
  for (int64_t row0 = 0; row0 < n; row0 += chunk) {
    const int64_t rows = std::min(chunk, n - row0);
    exec.pool.for_each(rows, 16, [&](int64_t r) {
      for (int64_t c = 0; c < k; ++c) {
        const int64_t j = columns[static_cast<size_t>(c)];
        v[static_cast<size_t>(r * k + c)] = level[(row0 + r) * k + j] - zero[(row0 + r) * groups + group[j]];
        if (tm) product[static_cast<size_t>(r * k + c)] = tm[(row0 + r) * k + j];
        else target[static_cast<size_t>(r * k + c)] = t[(row0 + r) * k + j];
      }
    });
    if (!tm)
      gemm_f32(exec.pool, Trans::no, Trans::no, rows, k, k, 1, target.data(), k, sorted.data(), k, 0, product.data(),
               k);
    const auto reduce = [&](int64_t row, int64_t g) {
      const int64_t at = row * k + start[static_cast<size_t>(g)];
      return kernel.dot(&v[static_cast<size_t>(at)], &product[static_cast<size_t>(at)],
                        start[static_cast<size_t>(g) + 1] - start[static_cast<size_t>(g)]);
    };
    exec.pool.for_each(rows, 16, [&](int64_t r) {
      for (int64_t g = 0; g < groups; ++g) b[static_cast<size_t>(r * groups + g)] = reduce(r, g);
    });
    for (int64_t h = 0; h < groups; ++h) {
      const int64_t from = start[static_cast<size_t>(h)], width = start[static_cast<size_t>(h) + 1] - from;
      // A is symmetric: the groups before h have their part of it.
      gemm_f32(exec.pool, Trans::no, Trans::no, rows, k - from, width, 1, v.data() + from, k,
               sorted.data() + from * k + from, k, 0, product.data() + from, k);
      exec.pool.for_each(rows, 16, [&](int64_t r) {
        for (int64_t g = h; g < groups; ++g)
          a[static_cast<size_t>((r * groups + g) * groups + h)] =
              a[static_cast<size_t>((r * groups + h) * groups + g)] = reduce(r, g);
      });
    }
    exec.pool.parallel_for(rows, 4, [&](int64_t begin, int64_t end, int) {
      std::vector<double> matrix(static_cast<size_t>(groups * groups)), x(static_cast<size_t>(groups));
      TwoLevelRefit two_level(of.two_level ? of.dtype : DType::f32, groups);
      for (int64_t r = begin; r < end; ++r) {
        double trace = 0;
        for (int64_t g = 0; g < groups; ++g) trace += a[static_cast<size_t>((r * groups + g) * groups + g)];
        const double ridge = 1e-7 * trace / static_cast<double>(groups);
        if (!(trace > 0)) continue;
        for (int64_t g = 0; g < groups; ++g) {
          x[static_cast<size_t>(g)] = b[static_cast<size_t>(r * groups + g)];
          for (int64_t h = 0; h < groups; ++h)
            matrix[static_cast<size_t>(g * groups + h)] =
                a[static_cast<size_t>((r * groups + g) * groups + h)] + (g == h ? ridge : 0);
          // A group of zero codes has no say; its scale stays.
          if (!(a[static_cast<size_t>((r * groups + g) * groups + g)] > 0)) {
            matrix[static_cast<size_t>(g * groups + g)] = trace;
            x[static_cast<size_t>(g)] = trace * scale[(row0 + r) * groups + g];
          }
        }
        if (!solve_spd(matrix.data(), x.data(), groups)) continue;
        bool usable = true;
        const Quadratic cost{&a[static_cast<size_t>(r * groups * groups)], &b[static_cast<size_t>(r * groups)], groups};
        float* own = scale + (row0 + r) * groups;
        for (int64_t g = 0; g < groups; ++g) {
          const double ratio = x[static_cast<size_t>(g)] / own[g];
          usable = usable && ratio > 0.25 && ratio < 4.0;
        }
        if (!usable) continue;
        if (of.two_level) {
          better[static_cast<size_t>(row0 + r)] = two_level.improve(cost, x.data(), own);
          continue;
        }
        const double before = cost([&](int64_t g) { return static_cast<double>(own[g]); });
        const double after =
            cost([&](int64_t g) { return static_cast<double>(static_cast<float>(x[static_cast<size_t>(g)])); });
        if (!(after < before)) continue;
        for (int64_t g = 0; g < groups; ++g) own[g] = static_cast<float>(x[static_cast<size_t>(g)]);
        better[static_cast<size_t>(row0 + r)] = 1;
      }
    });
  }
  double count = 0;
  for (uint8_t flag : better) count += flag;
  *of.refitted.data<double>() = count;
}

void error(Call& call, Exec& exec) {
  const ops::ModuleError a(call);
  require_dtype(a.weight, "weight", {DType::f32});
  require_dtype(a.quantized, "quantized", {DType::f32});
  require_dtype(a.h, "H", {DType::f64});
  const int64_t n = a.weight.dim(0), k = a.weight.dim(1);
  const float *w = a.weight.data<float>(), *q = a.quantized.data<float>();
  const double* h = a.h.data<double>();
  std::vector<float> metric(static_cast<size_t>(k * k));
  for (size_t i = 0; i < metric.size(); ++i) metric[i] = static_cast<float>(h[i]);
  const int64_t chunk = std::min<int64_t>(n, 1024);
  std::vector<float> d(static_cast<size_t>(chunk * k)), product(d.size());
  double sums[2] = {0, 0};
  for (int which = 0; which < 2; ++which)
    for (int64_t row0 = 0; row0 < n; row0 += chunk) {
      const int64_t rows = std::min(chunk, n - row0);
      for (int64_t i = 0; i < rows * k; ++i)
        d[static_cast<size_t>(i)] = which ? w[row0 * k + i] : w[row0 * k + i] - q[row0 * k + i];
      gemm_f32(exec.pool, Trans::no, Trans::no, rows, k, k, 1, d.data(), k, metric.data(), k, 0, product.data(), k);
      for (int64_t r = 0; r < rows; ++r)
        sums[which] += kernels().dot(&d[static_cast<size_t>(r * k)], &product[static_cast<size_t>(r * k)], k);
    }
  a.sums.data<double>()[0] = sums[0];
  a.sums.data<double>()[1] = sums[1];
}

LPQ_OP(refit, "gptq_refit");
LPQ_OP(error, "module_error");

}  // namespace
}  // namespace lpq::gptq
