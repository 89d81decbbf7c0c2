// Random weights that look trained, for benchmarks: normal deviates whose scale varies from row to row and from column
// to column, with a few outlier columns. Counter-based, so that the values depend on the seeds and the place alone: not
// on threads, on the instruction set, or on how the rows are cut into calls.
#include <bit>
#include <cmath>
#include <vector>

#include "cpu/math.h"
#include "cpu/nn/cast.h"
#include "cpu/synth/draws.h"
#include "ops/arguments.h"

namespace lpq {
namespace {

using synth::draw, synth::mixed;

// Quantiles of the upper half of the standard normal distribution at (i + 1/2) / 2^15: a sign and 15 bits make a
// deviate, up to 4.3 in magnitude. The distribution is integrated (Simpson) with our own exp, so that every machine has
// one table.
constexpr int kHalf = 1 << 15;
const float* half_normal() {
  static const std::vector<float> table = [] {
    std::vector<float> z(kHalf);
    constexpr double h = 0x1p-12;
    const double root = std::sqrt(2.0 / 3.141592653589793);
    const auto density = [root](double x) { return root * exp_f64(-0.5 * x * x); };
    double x = 0, below = 0;  // P(|Z| < x)
    double step = h / 6 * (density(0) + 4 * density(h / 2) + density(h));
    for (int i = 0; i < kHalf; ++i) {
      const double p = (i + 0.5) / kHalf;
      while (below + step < p) {
        below += step;
        x += h;
        step = h / 6 * (density(x) + 4 * density(x + h / 2) + density(x + h));
      }
      z[static_cast<size_t>(i)] = static_cast<float>(x + h * (p - below) / step);
    }
    return z;
  }();
  return table.data();
}
inline float normal(const float* half, uint32_t bits16) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(half[bits16 & 0x7fffu]) ^ ((bits16 & 0x8000u) << 16));
}

// weights [N,K] or [K] f32|f16|bf16: column[k] * (mean + std * row[n] * z[n][k]); row and column log-normal with the
// given spreads (standard deviation of the logarithm), a share of the columns multiplied by outlierGain. Rows count
// from firstRow. Seeds are integers below 2^53; seed draws z and the rows, columnSeed the columns.
void synth_weights(Call& call, Exec& exec) {
  Arguments a(call, "synth_weights");
  const Tensor& weights = a.output("weights");
  require_dtype(weights, "weights", ops::kFloats);
  require(weights.rank() == 1 || weights.rank() == 2, "weights has neither one dimension nor two");
  require_aligned(weights, "weights");
  const int64_t k = weights.shape.back(), n = weights.rank() == 2 ? weights.dim(0) : 1;
  const auto seed = static_cast<uint64_t>(a.integer("seed")),
             column_seed = static_cast<uint64_t>(a.integer("columnSeed"));
  const auto first_row = static_cast<uint64_t>(a.integer("firstRow", 0));
  const float mean = a.real("mean", 0), std = a.real("std"), row_spread = a.real("rowSpread", 0),
              column_spread = a.real("columnSpread", 0);
  const double share = a.number("outlierShare", 0);
  const float gain = a.real("outlierGain", 1);
  a.done();
  require(share >= 0 && share <= 1, "outlierShare is no share");

  const float* half = half_normal();
  const uint64_t column_key = mixed(column_seed ^ 0x636f6c756d6e73u), row_key = mixed(seed ^ 0x726f7773u),
                 key = mixed(seed);
  const auto outliers = static_cast<uint64_t>(share * 0x1p32);
  std::vector<float> column(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const uint64_t bits = draw(column_key, static_cast<uint64_t>(i));
    const float scale = exp_f32(column_spread * normal(half, static_cast<uint32_t>(bits & 0xffffu)));
    column[static_cast<size_t>(i)] = (bits >> 32) < outliers ? scale * gain : scale;
  }
  const uint64_t draws = (static_cast<uint64_t>(k) + 3) / 4;  // of four deviates each, for a row
  const auto bytes = static_cast<int64_t>(dtype_bytes(weights.dtype));
  const auto& kernels = nn::vector_kernels();
  exec.total = n;
  exec.pool.parallel_for(n, rows_grain(k), [&](int64_t begin, int64_t end, int) {
    std::vector<float> line(static_cast<size_t>(draws * 4));
    for (int64_t r = begin; r < end; ++r) {
      const uint64_t row = first_row + static_cast<uint64_t>(r);
      const float scale = std * exp_f32(row_spread * normal(half, static_cast<uint32_t>(draw(row_key, row) & 0xffffu)));
      for (uint64_t d = 0; d < draws; ++d) {
        const uint64_t bits = draw(key, row * draws + d);
        for (unsigned j = 0; j < 4; ++j)
          line[d * 4 + j] = mean + scale * normal(half, static_cast<uint32_t>(bits >> (16 * j)) & 0xffffu);
      }
      for (int64_t i = 0; i < k; ++i) line[static_cast<size_t>(i)] *= column[static_cast<size_t>(i)];
      std::byte* to = weights.raw() + r * k * bytes;
      if (weights.dtype == DType::f32) std::copy(line.begin(), line.begin() + k, reinterpret_cast<float*>(to));
      else if (weights.dtype == DType::f16) kernels.narrow_f16(line.data(), reinterpret_cast<uint16_t*>(to), k);
      else kernels.narrow_bf16(line.data(), reinterpret_cast<uint16_t*>(to), k);
    }
    exec.done += end - begin;
  });
}

}  // namespace
LPQ_OP(synth_weights, "synth_weights");
}  // namespace lpq
