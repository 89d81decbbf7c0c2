// short_conv_backward.
#include "cpu/nn/recurrence.h"
#include "ops/backward_recurrent.h"

namespace lpq::nn {
namespace {

constexpr int64_t kChannels = 64;

// A sequence's tokens of some neighbouring channels.
void backward(const ops::ShortConvBackward& a, const std::vector<float>& weight, const std::vector<float>& bias,
              int64_t first, int64_t count, int64_t channel, int64_t width) {
  const int64_t taps = a.weight.dim(1), channels = a.weight.dim(0);
  const float* matrix = a.x.data<float>();
  float* made = a.dx.data<float>();
  const auto place = [&](const Columns& of, int64_t t) { return (first + t) * of.pitch + of.first + channel; };
  const auto factor = [&](int64_t t, int64_t c) {
    const double x = static_cast<double>(matrix[place(a.columns, t) + c]);
    return a.multiplied ? x * static_cast<double>(matrix[place(a.times, t) + c]) : x;
  };
  std::vector<double> ds(static_cast<size_t>(count * width));
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < width; ++c) {
      const size_t tap = static_cast<size_t>((channel + c) * taps);
      double sum = a.bias ? static_cast<double>(bias[static_cast<size_t>(channel + c)]) : 0.0;
      for (int64_t j = std::max<int64_t>(0, taps - 1 - t); j < taps; ++j)
        sum += static_cast<double>(weight[tap + static_cast<size_t>(j)]) * factor(t - taps + 1 + j, c);
      const double share = a.silu ? 1 / (1 + std::exp(-sum)) : 1;
      double dy = static_cast<double>(a.dy.data<float>()[(first + t) * channels + channel + c]);
      if (a.gated) {
        const double gate = static_cast<double>(matrix[place(a.gate, t) + c]);
        made[place(a.gate, t) + c] = static_cast<float>(dy * sum * share);
        dy *= gate;
      }
      ds[static_cast<size_t>(t * width + c)] = a.silu ? dy * share * (1 + sum * (1 - share)) : dy;
    }
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < taps && t + j < count; ++j)
        sum += static_cast<double>(weight[static_cast<size_t>((channel + c) * taps + taps - 1 - j)]) *
               ds[static_cast<size_t>((t + j) * width + c)];
      const int64_t at = place(a.columns, t) + c;
      made[at] = static_cast<float>(a.multiplied ? sum * static_cast<double>(matrix[place(a.times, t) + c]) : sum);
      if (a.multiplied) made[place(a.times, t) + c] = static_cast<float>(sum * static_cast<double>(matrix[at]));
    }
}

void short_conv_backward(Call& call, Exec& exec) {
  const ops::ShortConvBackward a(call);
  const int64_t channels = a.weight.dim(0), parts = (channels + kChannels - 1) / kChannels;
  const std::vector<float> weight = widened(a.weight), bias = a.bias ? widened(*a.bias) : std::vector<float>();
  const std::vector<Run> all = runs({a.starts}, a.x.dim(0));
  exec.pool.for_each(static_cast<int64_t>(all.size()) * parts, 1, [&](int64_t task) {
    const Run& run = all[static_cast<size_t>(task / parts)];
    const int64_t channel = task % parts * kChannels;
    backward(a, weight, bias, run.first, run.count, channel, std::min(kChannels, channels - channel));
  });
}

}  // namespace
LPQ_OP(short_conv_backward, "short_conv_backward");
}  // namespace lpq::nn
