// match_rms, scale_columns, gaussian_top_k: sums in double, in the order of columns.
#include "ops/alternating.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

double mean_square(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum / static_cast<double>(count);
}

void match_rms(Call& call, Exec& exec) {
  const ops::MatchRms a(call);
  const int64_t c = a.x.dim(1);
  const float *from = a.x.data<float>(), *like = a.like.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(a.x.dim(0), rows_grain(c), [&](int64_t t) {
    const double wanted = mean_square(like + t * c, c), own = std::max(mean_square(from + t * c, c), a.floor);
    const double factor = std::sqrt(wanted / own);
    for (int64_t i = t * c; i < (t + 1) * c; ++i) to[i] = static_cast<float>(from[i] * factor);
  });
}

void scale_columns(Call& call, Exec& exec) {
  const ops::ScaleColumns a(call);
  const int64_t c = a.x.dim(1);
  std::vector<float> scales(static_cast<size_t>(c));
  widen(a.scales, 0, c, scales.data());
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(a.x.dim(0), rows_grain(c), [&](int64_t t) {
    for (int64_t i = 0; i < c; ++i) to[t * c + i] = from[t * c + i] * scales[static_cast<size_t>(i)];
  });
}

void gaussian_top_k(Call& call, Exec& exec) {
  const ops::GaussianTopK a(call);
  const int64_t c = a.x.dim(1);
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(a.x.dim(0), rows_grain(c), [&](int64_t t) {
    const float* row = from + t * c;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < c; ++i) sum += row[i];
    const double mean = sum / static_cast<double>(c);
    for (int64_t i = 0; i < c; ++i) squares += (row[i] - mean) * (row[i] - mean);
    const double cutoff = mean + a.deviations * std::sqrt(squares / static_cast<double>(c));
    for (int64_t i = 0; i < c; ++i) to[t * c + i] = static_cast<float>(std::max(row[i] - cutoff, 0.0));
  });
}

}  // namespace
LPQ_OP(match_rms, "match_rms");
LPQ_OP(scale_columns, "scale_columns");
LPQ_OP(gaussian_top_k, "gaussian_top_k");
}  // namespace lpq::nn
