// short_conv: a causal convolution of each channel over a few tokens.
#include "cpu/nn/recurrence.h"

namespace lpq::nn {
namespace {

constexpr int64_t kTokens = 64, kChannels = 256;

void short_conv(Call& call, Exec& exec) {
  const ops::ShortConv a(call);
  const int64_t tokens = a.x.dim(0), channels = a.weight.dim(0), taps = a.weight.dim(1), kept = taps - 1;
  const std::vector<Run> all = runs(a.past, tokens);
  const std::vector<float> weight = widened(a.weight), bias = a.bias ? widened(*a.bias) : std::vector<float>();
  const float *matrix = a.x.data<float>(), *x = matrix + a.columns.first;
  int64_t pitch = a.columns.pitch;
  float* y = a.y.data<float>();
  std::vector<float> products;
  if (a.multiplied) {
    products.resize(static_cast<size_t>(tokens * channels));
    exec.pool.for_each(tokens, kTokens, [&](int64_t t) {
      const float *from = x + t * a.columns.pitch, *by = matrix + t * a.times.pitch + a.times.first;
      for (int64_t c = 0; c < channels; ++c) products[static_cast<size_t>(t * channels + c)] = from[c] * by[c];
    });
    x = products.data(), pitch = channels;
  }

  // A token of a run, those before it in the state.
  const auto at = [&](const Run& run, int64_t token) -> const float* {
    if (token >= 0) return x + (run.first + token) * pitch;
    return run.fresh || token < -kept ? nullptr : run.state + (kept + token) * channels;
  };
  struct Task {
    const Run* run;
    int64_t token, channel;
  };
  std::vector<Task> tasks;
  for (const Run& run : all)
    for (int64_t token = 0; token < run.count; token += kTokens)
      for (int64_t channel = 0; channel < channels; channel += kChannels) tasks.push_back({&run, token, channel});
  exec.pool.for_each(static_cast<int64_t>(tasks.size()), 1, [&](int64_t i) {
    const auto& [run, begin, first] = tasks[static_cast<size_t>(i)];
    const int64_t end = std::min(begin + kTokens, run->count), width = std::min(kChannels, channels - first);
    double sum[kChannels];
    for (int64_t t = begin; t < end; ++t) {
      std::fill(sum, sum + width, 0.0);
      for (int64_t j = 0; j < taps; ++j) {
        const float* from = at(*run, t - kept + j);
        if (!from) continue;
        for (int64_t c = 0; c < width; ++c)
          sum[c] += static_cast<double>(weight[static_cast<size_t>((first + c) * taps + j)]) *
                    static_cast<double>(from[first + c]);
      }
      float* out = y + (run->first + t) * channels + first;
      for (int64_t c = 0; c < width; ++c)
        out[c] =
            static_cast<float>(sum[c] + (a.bias ? static_cast<double>(bias[static_cast<size_t>(first + c)]) : 0.0));
      if (a.silu) vector_kernels().activate(Act::silu, out, out, width);
      if (!a.gated) continue;
      const float* by = matrix + (run->first + t) * a.gate.pitch + a.gate.first + first;
      for (int64_t c = 0; c < width; ++c) out[c] *= by[c];
    }
  });

  // The newest tokens of each sequence, of which some may have been in the state already.
  exec.pool.for_each(static_cast<int64_t>(all.size()), 1, [&](int64_t s) {
    const Run& run = all[static_cast<size_t>(s)];
    if (!run.state || run.count == 0) return;
    std::vector<float> next(static_cast<size_t>(kept * channels), 0.0f);
    for (int64_t i = 0; i < kept; ++i)
      if (const float* from = at(run, run.count - kept + i))
        std::copy(from, from + channels, next.begin() + static_cast<ptrdiff_t>(i * channels));
    std::copy(next.begin(), next.end(), run.state);
  });
}

}  // namespace
LPQ_OP(short_conv, "short_conv");
}  // namespace lpq::nn
