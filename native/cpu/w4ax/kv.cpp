// simulate_kv: keys or values as a cache of 4-bit codes gives them back.
#include <limits>

#include "cpu/w4ax/codes.h"
#include "lpq/half.h"
#include "ops/w4ax.h"

namespace lpq::w4ax {
namespace {

float through_half(float v) { return f16_to_f32(f32_to_f16(v)); }

// Codes of a channel over `count` tokens, `stride` apart, from `low` on in steps of f16.
struct Grid {
  float zero, scale, inverse, top;

  Grid(float low, float high, float most)
      : zero(through_half(low)),
        scale(through_half((high - zero) / most)),
        inverse(scale > 0 ? 1.0f / scale : 0.0f),
        top(most) {}
  float operator()(float x) const {
    const float v = std::min(std::max((x - zero) * inverse, 0.0f), top);
    return std::fma((v + 12582912.0f) - 12582912.0f, scale, zero);
  }
};

// Shares of the range by which both ends may be drawn in: i / 40.
constexpr int kClips = 8;

void channel(const float* x, float* y, int64_t count, int64_t stride, float top, bool clip) {
  float low = x[0], high = x[0];
  for (int64_t t = 1; t < count; ++t) {
    low = std::min(low, x[t * stride]);
    high = std::max(high, x[t * stride]);
  }
  Grid best(low, high, top);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; clip && i < kClips; ++i) {
    const float in = 0.025f * static_cast<float>(i) * (high - low);
    const Grid grid(low + in, high - in, top);
    double error = 0;
    for (int64_t t = 0; t < count; ++t) {
      const double off = static_cast<double>(x[t * stride]) - static_cast<double>(grid(x[t * stride]));
      error += off * off;
    }
    if (error < least) least = error, best = grid;
  }
  for (int64_t t = 0; t < count; ++t) y[t * stride] = best(x[t * stride]);
}

void simulate_kv(Call& call, Exec& exec) {
  const ops::SimulateKv p(call);
  require_f32({{&p.x, "x"}});
  const int64_t tokens = p.tokens, width = p.width, group = p.group, bits = p.bits, sequences = p.sequences;
  const bool clip = p.clip;
  const int32_t* start = p.starts.data<int32_t>();
  require(start[0] == 0 && start[sequences] == tokens, "starts do not cover x");
  const float* from = p.x.data<float>();
  float* to = p.y.data<float>();
  const float top = static_cast<float>((1 << bits) - 1);
  exec.pool.parallel_for(width, std::max<int64_t>(16, rows_grain((clip ? 64 : 8) * tokens)),
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t s = 0; s < sequences; ++s)
                             for (int64_t first = start[s]; first < start[s + 1]; first += group) {
                               const int64_t count = std::min<int64_t>(group, start[s + 1] - first);
                               for (int64_t c = begin; c < end; ++c) {
                                 const int64_t at = first * width + c;
                                 channel(from + at, to + at, count, width, top, clip);
                               }
                             }
                         });
}

}  // namespace
LPQ_OP(simulate_kv, "simulate_kv");
}  // namespace lpq::w4ax
