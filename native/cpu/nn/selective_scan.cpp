// selective_scan: the state spaces of Mamba and Mamba-2.
#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

// softplus(step + bias) of every token, within its bounds.
std::vector<float> steps(const ops::SelectiveScan& a, Exec& exec) {
  const int64_t width = a.step.dim(1);
  const std::vector<float> bias = widened(a.bias);
  std::vector<float> made(static_cast<size_t>(a.step.elements()));
  exec.pool.for_each(a.step.dim(0), 8, [&](int64_t t) {
    for (int64_t i = 0; i < width; ++i) {
      const double at =
          static_cast<double>(a.step.data<float>()[t * width + i]) + static_cast<double>(bias[static_cast<size_t>(i)]);
      made[static_cast<size_t>(t * width + i)] = static_cast<float>(std::min(std::max(softplus(at), a.least), a.most));
    }
  });
  return made;
}

// -exp(rate): of heads [heads], of channels [parts, size, kStateColumns] in the order of a state's columns.
std::vector<float> rates(const ops::SelectiveScan& a) {
  const std::vector<float> given = widened(a.rate);
  const auto rate = [&](int64_t i) {
    return static_cast<float>(-std::exp(static_cast<double>(given[static_cast<size_t>(i)])));
  };
  std::vector<float> made;
  if (!a.by_channel) {
    for (int64_t h = 0; h < a.heads; ++h) made.push_back(rate(h));
    return made;
  }
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t first = 0; first < a.head_dim; first += kStateColumns)
      for (int64_t n = 0; n < a.size; ++n)
        for (int64_t p = first; p < first + kStateColumns; ++p)
          made.push_back(p < a.head_dim ? rate((h * a.head_dim + p) * a.size + n) : 0.0f);
  return made;
}

void selective_scan(Call& call, Exec& exec) {
  const ops::SelectiveScan a(call);
  const std::vector<Run> all = runs(a.past, a.x.dim(0));
  const std::vector<float> step = steps(a, exec), rate = rates(a), skip = widened(a.skip);
  const int64_t channels = a.heads * a.head_dim, width = a.groups * a.size;
  const int64_t parts = (a.head_dim + kStateColumns - 1) / kStateColumns;
  over_states(
      exec, all, a.heads, a.size, a.head_dim,
      [&](int64_t t, int64_t head, int64_t first, int64_t columns, float* state) {
        const int64_t group = t * width + head / (a.heads / a.groups) * a.size, from = head * a.head_dim + first;
        const float *b = a.b.data<float>() + group, *c = a.c.data<float>() + group;
        const float* x = a.x.data<float>() + t * channels + from;
        float own[kStateColumns] = {}, in[kStateColumns] = {}, made[kStateColumns];
        for (int64_t i = 0; i < columns; ++i) {
          own[i] = step[static_cast<size_t>(a.by_channel ? t * channels + from + i : t * a.heads + head)];
          in[i] = own[i] * x[i];
        }
        if (a.by_channel) {
          const int64_t part = (head * parts + first / kStateColumns) * a.size * kStateColumns;
          vector_kernels().scan_token(state, a.size, rate.data() + part, own, b, c, in, made);
        } else {
          const double fast = static_cast<double>(rate[static_cast<size_t>(head)]) * static_cast<double>(own[0]);
          vector_kernels().decay_token(state, a.size, static_cast<float>(std::exp(fast)), b, c, in, made);
        }
        float* y = a.y.data<float>() + t * channels + from;
        for (int64_t i = 0; i < columns; ++i)
          y[i] = std::fma(skip[static_cast<size_t>(a.by_channel ? from + i : head)], x[i], made[i]);
      });
}

}  // namespace
LPQ_OP(selective_scan, "selective_scan");
}  // namespace lpq::nn
