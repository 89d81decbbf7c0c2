// tune_aim, tune_start, tune_grid, tune_round, tune_step, tune_scale_gradient, tune_adam.
#include "ops/tune.h"

#include <algorithm>
#include <cmath>

#include "cpu/checks.h"
#include "cpu/quant/grid.h"
#include "cpu/quant/scale.h"

namespace lpq::tune {
namespace {

// Places between grid points that a start keeps from ties, so that one small step does not undo it.
constexpr float kMargin = 1.0f / 64;

// The distance of a type's grid points near x.
class Spacing {
 public:
  explicit Spacing(const QuantType& type)
      : whole_(type.kind == QuantType::Kind::integer),
        least_(static_cast<uint32_t>(127 + 1 - type.bias) << 23),
        shift_(static_cast<uint32_t>(type.mantissa) << 23) {}
  LPQ_FORCE_INLINE float at(float x) const {
    if (whole_) return 1.0f;
    return as_float(std::max(as_bits(x) & 0x7f800000u, least_) - shift_);
  }

 private:
  bool whole_;
  uint32_t least_, shift_;
};

// w / S + Z; 0 where the group has no scale.
LPQ_FORCE_INLINE float place(float w, float scale, float zero) { return (scale == 0.0f ? 0.0f : w / scale) + zero; }

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

void start(Call& call, Exec& exec) {
  const ops::TuneStart a(call);
  const Spacing spacing(a.type);
  const float *w = a.w.data<float>(), *scale = a.scale.data<float>(), *zero = a.zero.data<float>();
  const uint8_t* codes = a.codes.data<uint8_t>();
  float* v = a.v.data<float>();
  with_grid(a.type, [&](const auto& grid) {
    const auto step = grid.step(1.0f, 0.0f);
    groups(exec, a.of, [&](int64_t g, int64_t first) {
      for (int64_t i = first; i < first + a.of.length; ++i) {
        const float x = place(w[i], scale[g], zero[g]), level = grid.value(codes[i]);
        if (grid.nearest(x, step).value == level) {
          v[i] = 0.0f;
          continue;
        }
        const float room = (0.5f - kMargin) * spacing.at(level);
        float to = std::clamp(x, level - room, level + room);
        if (grid.nearest(to, step).value != level) to = level;
        v[i] = (to - x) / spacing.at(x);
      }
    });
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

void round(Call& call, Exec& exec) {
  const ops::TuneRound a(call);
  const Spacing spacing(a.type);
  const float *w = a.w.data<float>(), *v = a.v.data<float>(), *scale = a.scale.data<float>(),
              *zero = a.zero.data<float>();
  float* y = a.y.data<float>();
  uint8_t* codes = a.codes ? a.codes->data<uint8_t>() : nullptr;
  with_grid(a.type, [&](const auto& grid) {
    const auto step = grid.step(1.0f, 0.0f);
    groups(exec, a.of, [&](int64_t g, int64_t first) {
      for (int64_t i = first; i < first + a.of.length; ++i) {
        const float x = place(w[i], scale[g], zero[g]);
        const Rounded made = grid.nearest(x + v[i] * spacing.at(x), step);
        y[i] = (made.value - zero[g]) * scale[g];
        if (codes) codes[i] = static_cast<uint8_t>(made.code);
      }
    });
  });
}

float sign(double x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }

void step(Call& call, Exec& exec) {
  const ops::TuneStep a(call);
  const Spacing spacing(a.type);
  const float *w = a.w.data<float>(), *slope = a.g.data<float>(), *s = a.s.data<float>(),
              *scale = a.scale.data<float>(), *zero = a.zero.data<float>();
  float *v = a.v.data<float>(), *f = a.f.data<float>(), *e = a.e.data<float>();
  // Beyond the last grid points by half a step, nothing follows a shift.
  const bool whole = a.type.kind == QuantType::Kind::integer;
  const float low = whole ? a.type.min_value() - 0.5f : -a.type.max_value();
  const float high = whole ? a.type.max_value() + 0.5f : a.type.max_value();
  with_grid(a.type, [&](const auto& grid) {
    const auto one = grid.step(1.0f, 0.0f);
    groups(exec, a.of, [&](int64_t g, int64_t first) {
      double by_scale = 0, by_zero = 0;
      for (int64_t i = first; i < first + a.of.length; ++i) {
        const float x = place(w[i], scale[g], zero[g]), to = x + v[i] * spacing.at(x);
        const bool inside = to > low && to < high;
        const float level = grid.nearest(to, one).value - zero[g];
        by_scale += static_cast<double>(slope[i]) * static_cast<double>(level - (inside ? x - zero[g] : 0.0f));
        if (inside) v[i] -= a.rate * sign(static_cast<double>(slope[i] * scale[g]));
        else by_zero -= static_cast<double>(slope[i] * scale[g]);
      }
      f[g] = std::clamp(f[g] - a.factor_rate * sign(by_scale * static_cast<double>(s[g])), 0.25f, 2.0f);
      e[g] -= a.zero_rate * sign(by_zero);
    });
  });
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

LPQ_OP(aim, "tune_aim");
LPQ_OP(start, "tune_start");
LPQ_OP(grid, "tune_grid");
LPQ_OP(round, "tune_round");
LPQ_OP(step, "tune_step");
LPQ_OP(scale_gradient, "tune_scale_gradient");
LPQ_OP(adam, "tune_adam");

}  // namespace
}  // namespace lpq::tune
