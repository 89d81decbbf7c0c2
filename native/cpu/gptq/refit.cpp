// gptq_refit: the scales that fit fixed codes best.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/gptq/quadratic.h"
#include "cpu/linalg/gemm.h"
#include "lpq/two_level.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

// Solves A x = b in place by Cholesky, A = U^T U, of which the upper triangle is read; false when A is not positive
// definite.
bool solve_spd(double* a, double* b, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    double* line = a + j * n;
    if (!(line[j] > 0)) return false;
    const double d = std::sqrt(line[j]);
    for (int64_t i = j; i < n; ++i) line[i] /= d;
    b[j] /= d;
    for (int64_t i = j + 1; i < n; ++i) {
      const double factor = line[i];
      double* to = a + i * n;
      for (int64_t p = i; p < n; ++p) to[p] -= factor * line[p];
      b[i] -= factor * b[j];
    }
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t p = i + 1; p < n; ++p) b[i] -= a[i * n + p] * b[p];
    b[i] /= a[i * n + i];
  }
  return true;
}

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

// The scales of one row at a time.
class RowRefit {
 public:
  explicit RowRefit(const ops::GptqRefit& of)
      : groups_(of.problem.groups),
        matrix_(static_cast<size_t>(groups_ * groups_)),
        x_(static_cast<size_t>(groups_)),
        two_level_(of.two_level ? of.dtype : DType::f32, groups_),
        is_two_level_(of.two_level) {}

  // scale [groups] becomes the optimum where that lowers the error; false: it stays.
  bool improve(const Quadratic& cost, float* scale) {
    if (!solve(cost, scale)) return false;
    for (int64_t g = 0; g < groups_; ++g) {
      const double ratio = x(g) / scale[g];
      if (!(ratio > 0.25 && ratio < 4.0)) return false;
    }
    if (is_two_level_) return two_level_.improve(cost, x_.data(), scale);
    const double before = cost([&](int64_t g) { return static_cast<double>(scale[g]); });
    const double after = cost([&](int64_t g) { return static_cast<double>(static_cast<float>(x(g))); });
    if (!(after < before)) return false;
    for (int64_t g = 0; g < groups_; ++g) scale[g] = static_cast<float>(x(g));
    return true;
  }

 private:
  double& x(int64_t g) { return x_[static_cast<size_t>(g)]; }

  // x: where the quadratic is least.
  bool solve(const Quadratic& cost, const float* scale) {
    double trace = 0;
    for (int64_t g = 0; g < groups_; ++g) trace += cost.a[g * groups_ + g];
    const double ridge = 1e-7 * trace / static_cast<double>(groups_);
    if (!(trace > 0)) return false;
    std::copy_n(cost.a, groups_ * groups_, matrix_.data());
    for (int64_t g = 0; g < groups_; ++g) {
      double& own = matrix_[static_cast<size_t>(g * groups_ + g)];
      // A group of zero codes has no say; its scale stays.
      x(g) = own > 0 ? cost.b[g] : trace * scale[g];
      own = own > 0 ? own + ridge : trace;
    }
    return solve_spd(matrix_.data(), x_.data(), groups_);
  }

  int64_t groups_;
  std::vector<double> matrix_, x_;
  TwoLevelRefit two_level_;
  bool is_two_level_;
};

// What a thread works in.
struct Worker {
  Quadratics quadratics;
  RowRefit row;
  int64_t improved;
};

// Several tiles share what a task reads of M; every thread has a few tasks; quadratics of a task take 16 MB at most.
int64_t rows_of_task(int64_t n, int64_t groups, int64_t tile, int threads) {
  const int64_t tiles = std::clamp<int64_t>(n / (4 * threads * tile), 1, 4);
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 21) / (groups * groups));
  return std::min(tiles * tile, most);
}

void refit(Call& call, Exec& exec) {
  const ops::GptqRefit of(call);
  const int64_t n = of.problem.n, k = of.problem.k, groups = of.problem.groups;
  const float* m = of.problem.matrix.data<float>();
  float* scale = of.problem.scale.data<float>();
  std::vector<float> made(of.tm ? 0 : static_cast<size_t>(n * k));
  if (!of.tm)
    gemm_f32(exec.pool, Trans::no, Trans::no, n, k, k, 1, of.problem.t.data<float>(), k, m, k, 0, made.data(), k);
  const float* tm = of.tm ? of.tm->data<float>() : made.data();
  const GroupedMetric metric(exec, m, of.problem.group.data<int32_t>(), k, groups, products_of(of.bf16));
  const int64_t rows = rows_of_task(n, groups, metric.rows(), exec.pool.size()), tasks = (n + rows - 1) / rows;
  std::vector<Worker> workers;
  for (int i = 0; i < exec.pool.size(); ++i) workers.push_back({Quadratics(of, tm, metric), RowRefit(of), 0});
  exec.pool.parallel_for(tasks, 1, [&](int64_t begin, int64_t end, int worker) {
    Worker& own = workers[static_cast<size_t>(worker)];
    for (int64_t row0 = begin * rows; row0 < std::min(n, end * rows); row0 += rows) {
      const int64_t here = std::min(rows, n - row0);
      own.quadratics.make(row0, here);
      for (int64_t r = 0; r < here; ++r)
        own.improved += own.row.improve(own.quadratics.at(r), scale + (row0 + r) * groups);
    }
  });
  double count = 0;
  for (const Worker& worker : workers) count += static_cast<double>(worker.improved);
  *of.refitted.data<double>() = count;
}

LPQ_OP(refit, "gptq_refit");

}  // namespace
}  // namespace lpq::gptq
