// tune_aim, tune_grid, tune_scale_gradient, tune_gain_gradient, tune_adam, tune_row_dots.
#include "ops/tune.h"

#include <algorithm>
#include <cmath>

#include "cpu/checks.h"
#include "cpu/quant/scale.h"

namespace lpq::tune {
namespace {

template <class Body>
void groups(Exec& exec, const ops::TuneGroups& of, const Body& body) {
  exec.pool.for_each(of.n, rows_grain(of.k), [&](int64_t row) {
    for (int64_t g = 0; g < of.groups; ++g) body(row * of.groups + g, row * of.k + g * of.length);
  });
}

void aim(Call& call, Exec& exec) {
  const ops::TuneAim a(call);
  const int64_t k = a.p.dim(1), groups = a.scale.dim(1);
  const float *p = a.p.data<float>(), *w = a.w.data<float>(), *scale = a.scale.data<float>();
  float *t = a.t.data<float>(), *most = a.most.data<float>();
  exec.pool.for_each(a.p.dim(0), rows_grain(k), [&](int64_t row) {
    double squares = 0, unit = 0;
    for (int64_t i = row * k; i < (row + 1) * k; ++i) squares += static_cast<double>(p[i]) * static_cast<double>(p[i]);
    for (int64_t g = row * groups; g < (row + 1) * groups; ++g) unit += std::fabs(static_cast<double>(scale[g]));
    most[row] = std::max(most[row], static_cast<float>(std::sqrt(squares / static_cast<double>(k))));
    const float step =
        most[row] == 0.0f ? 0.0f : a.rate * static_cast<float>(unit / static_cast<double>(groups)) / most[row];
    for (int64_t i = row * k; i < (row + 1) * k; ++i) t[i] = w[i] + a.leak * (t[i] - w[i]) - step * p[i];
  });
}

void grid(Call& call, Exec&) {
  const ops::TuneGrid a(call);
  const float *s = a.s.data<float>(), *f = a.f.data<float>(), *z = a.z.data<float>(), *e = a.e.data<float>();
  float *scale = a.scale.data<float>(), *zero = a.zero.data<float>();
  const float least = a.type.min_value(), most = a.type.max_value();
  for (int64_t i = 0; i < a.s.elements(); ++i) {
    float held = write_number(a.stored.dtype, a.stored.raw(), i, s[i] * f[i] / a.unit);
    if (!std::isfinite(held) || held == 0.0f) held = write_number(a.stored.dtype, a.stored.raw(), i, s[i] / a.unit);
    scale[i] = held * a.unit;
    zero[i] = e[i] == 0.0f ? z[i] : std::clamp(std::nearbyint(z[i] + e[i]), least, most);
  }
}

void scale_gradient(Call& call, Exec& exec) {
  const ops::TuneScaleGradient a(call);
  const float *dw = a.dw.data<float>(), *w = a.w.data<float>(), *f = a.f.data<float>();
  float* g = a.g.data<float>();
  groups(exec, a.of, [&](int64_t at, int64_t first) {
    double sum = 0;
    for (int64_t i = first; i < first + a.of.length; ++i) sum += static_cast<double>(dw[i]) * static_cast<double>(w[i]);
    g[at] += static_cast<float>(sum / static_cast<double>(f[at]));
  });
}

// Columns that a worker sums over all rows.
constexpr int64_t kColumns = 64;

void gain_gradient(Call& call, Exec& exec) {
  const ops::TuneGainGradient a(call);
  const int64_t rows = a.x.dim(0), width = a.x.dim(1);
  const float *x = a.x.data<float>(), *dy = a.dy.data<float>(), *gain = a.gain.data<float>();
  float* g = a.g.data<float>();
  exec.pool.for_each((width + kColumns - 1) / kColumns, 1, [&](int64_t part) {
    const int64_t first = part * kColumns, end = std::min(first + kColumns, width);
    double sums[kColumns] = {};
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = first; i < end; ++i)
        sums[i - first] += static_cast<double>(x[row * width + i]) * static_cast<double>(dy[row * width + i]);
    for (int64_t i = first; i < end; ++i) g[i] += static_cast<float>(sums[i - first] * static_cast<double>(gain[i]));
  });
}

void adam(Call& call, Exec& exec) {
  const ops::TuneAdam a(call);
  float *f = a.f.data<float>(), *g = a.g.data<float>(), *m = a.m.data<float>(), *v = a.v.data<float>();
  const double steps = static_cast<double>(a.step);
  const double of_m = 1 / (1 - std::pow(a.beta1, steps)), of_v = 1 / (1 - std::pow(a.beta2, steps));
  exec.pool.parallel_for(a.f.elements(), 1 << 12, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const double slope = g[i];
      m[i] = static_cast<float>(a.beta1 * m[i] + (1 - a.beta1) * slope);
      v[i] = static_cast<float>(a.beta2 * v[i] + (1 - a.beta2) * slope * slope);
      const double step = a.rate * (m[i] * of_m) / (std::sqrt(v[i] * of_v) + a.eps);
      f[i] = std::clamp(static_cast<float>(f[i] - step), a.least, a.most);
      g[i] = 0;
    }
  });
}

void row_dots(Call& call, Exec& exec) {
  const ops::TuneRowDots a(call);
  const int64_t width = a.x.dim(1);
  const float *x = a.x.data<float>(), *y = a.y.data<float>();
  double* dots = a.dots.data<double>();
  exec.pool.for_each(a.x.dim(0), rows_grain(width), [&](int64_t row) {
    double sum = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i)
      sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    dots[row] = sum;
  });
}

LPQ_OP(aim, "tune_aim");
LPQ_OP(grid, "tune_grid");
LPQ_OP(scale_gradient, "tune_scale_gradient");
LPQ_OP(gain_gradient, "tune_gain_gradient");
LPQ_OP(adam, "tune_adam");
LPQ_OP(row_dots, "tune_row_dots");

}  // namespace
}  // namespace lpq::tune
