// selective_scan: the state spaces of Mamba and Mamba-2.
#include "cpu/nn/selective_scan.h"

namespace lpq::nn {
namespace {

void selective_scan(Call& call, Exec& exec) {
  const ops::SelectiveScan a(call);
  const std::vector<Run> all = runs(a.past, a.x.dim(0));
  const std::vector<float> step = scan_steps(a, exec), rate = scan_rates(a), skip = widened(a.skip);
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
