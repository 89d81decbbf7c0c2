// gptq_clip: a scale and a zero point for every group, by search in the Hessian's metric.
//
// The grid is clipped at p times the group's range and the candidate that minimises e M_gg e^T is kept (MARLIN section
// 3.5 searches by squared error; the metric is that of its code), e = rounded - T. M_gg is the group's diagonal block.
// Groups longer than 128 use the diagonal blocks of 128 columns inside them, which keeps the cost at 128 products a
// weight.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/gptq/kernels.h"
#include "cpu/linalg/gemm.h"
#include "cpu/quant/scale.h"
#include "ops/gptq.h"

namespace lpq::gptq {
namespace {

constexpr int64_t kTile = 128;        // columns of one diagonal block
constexpr int64_t kBudget = 1 << 21;  // floats of the residual buffer

struct Search {
  bool symmetric, both_signs;
  float constant_zero;
  int steps;
  double shrink;
  DType scale_dtype;
  float unit;
  float low, high;  // levels the type reaches (floats: where the largest magnitude is put)

  int candidates() const { return steps * (symmetric && both_signs ? 2 : 1); }

  bool coarse() const { return scale_dtype == DType::f8_e8m0 || scale_dtype == DType::f8_e4m3; }

  // With a second level, e4m3 may go down to its subnormals.
  float least() const { return scale_dtype == DType::f8_e4m3 ? 0x1p-9f : least_scale(scale_dtype); }

  // The nearest scale that the stored type can hold, where it is coarse.
  float usable(float scale) const {
    if (!coarse()) return scale;
    std::byte stored[1];
    const float held = write_number(scale_dtype, stored, 0, std::max(scale / unit, least()));
    return held * unit;
  }

  // Candidate i for a group with extremes lo <= hi; scale is never 0.
  void candidate(int i, float lo, float hi, float& scale, float& zero) const {
    const bool negative = i >= steps;
    // Powers of two: the candidates start above the ideal scale, so that the one that saturates nothing is among them.
    const double p = (1.0 - (negative ? i - steps : i) * shrink) * (scale_dtype == DType::f8_e8m0 ? 1.4142 : 1.0);
    if (lo == 0 && hi == 0) {
      // Where no code is 0 (u1: +-scale/2), the least scale that every stored type holds, for weights as near to 0 as
      // can be.
      const bool no_zero = symmetric && constant_zero != std::floor(constant_zero);
      scale = usable(!no_zero ? 1.0f : coarse() ? 0.0f : 0x1p-14f);
      zero = symmetric ? constant_zero : std::max(low, 0.0f);
      return;
    }
    if (symmetric) {
      const float most = std::max(std::fabs(lo), std::fabs(hi));
      // An integer grid spans high - low steps around its zero; a float grid reaches `high` on both sides.
      const double reach = constant_zero != 0.0f || low != -high ? 0.5 * (high - low) : high;
      scale = static_cast<float>(p * most / reach);
      zero = constant_zero;
    } else {
      lo = std::min(lo, 0.0f);
      hi = std::max(hi, 0.0f);
      scale = static_cast<float>(p * (static_cast<double>(hi) - lo) / (high - low));
      zero = 0;
    }
    scale = usable(scale);
    if (!symmetric) {
      const double z = low + std::nearbyint(-p * lo / scale);
      zero = static_cast<float>(std::min<double>(std::max<double>(z, low), high));
    }
    if (negative) scale = -scale;
  }
};

void clip(Call& call, Exec& exec) {
  const ops::GptqClip a(call);
  const int64_t n = a.problem.n, k = a.problem.k, groups = a.problem.groups;
  const float *t = a.problem.t.data<float>(), *m = a.problem.matrix.data<float>();
  const int32_t* group = a.problem.group.data<int32_t>();
  float *scale_of = a.problem.scale.data<float>(), *zero_of = a.problem.zero.data<float>();
  const QuantType& type = a.type;
  const bool is_float = type.kind == QuantType::Kind::floating;
  const Search search{a.symmetric,
                      a.both_signs,
                      a.constant_zero,
                      a.steps,
                      a.shrink,
                      a.scale_dtype,
                      a.unit,
                      is_float ? -type.top() : type.min_value(),
                      is_float ? type.top() : type.max_value()};

  std::vector<std::vector<int64_t>> members(static_cast<size_t>(groups));
  for (int64_t j = 0; j < k; ++j) {
    require(group[j] >= 0 && group[j] < groups, "group holds an index outside the scales");
    members[static_cast<size_t>(group[j])].push_back(j);
  }
  const int64_t candidates = search.candidates();
  const int64_t chunk = std::max<int64_t>(1, kBudget / (kTile * candidates));
  std::vector<float> residual(static_cast<size_t>(chunk * candidates * kTile)), product(residual.size());
  std::vector<float> metric(static_cast<size_t>(kTile * kTile)), gathered(static_cast<size_t>(chunk * kTile));
  std::vector<float> try_scale(static_cast<size_t>(chunk * candidates)), try_zero(try_scale.size());
  std::vector<double> cost(static_cast<size_t>(chunk * candidates));
  const Kernels& kernel = kernels();

  for (int64_t g = 0; g < groups; ++g) {
    const auto& columns = members[static_cast<size_t>(g)];
    const int64_t length = static_cast<int64_t>(columns.size());
    for (int64_t row0 = 0; row0 < n; row0 += chunk) {
      const int64_t rows = std::min(chunk, n - row0);
      exec.pool.for_each(rows, 16, [&](int64_t r) {
        float lo = std::numeric_limits<float>::infinity(), hi = -lo;
        for (int64_t j : columns) {
          lo = std::min(lo, t[(row0 + r) * k + j]);
          hi = std::max(hi, t[(row0 + r) * k + j]);
        }
        for (int64_t i = 0; i < candidates; ++i) {
          const size_t at = static_cast<size_t>(r * candidates + i);
          search.candidate(static_cast<int>(i), lo, hi, try_scale[at], try_zero[at]);
          cost[at] = 0;
        }
      });
      for (int64_t first = 0; first < length; first += kTile) {
        const int64_t width = std::min(kTile, length - first);
        for (int64_t a = 0; a < width; ++a)
          for (int64_t b = 0; b < width; ++b)
            metric[static_cast<size_t>(a * width + b)] =
                m[columns[static_cast<size_t>(first + a)] * k + columns[static_cast<size_t>(first + b)]];
        exec.pool.for_each(rows, 4, [&](int64_t r) {
          float* w = &gathered[static_cast<size_t>(r * kTile)];
          for (int64_t a = 0; a < width; ++a) w[a] = t[(row0 + r) * k + columns[static_cast<size_t>(first + a)]];
          for (int64_t i = 0; i < candidates; ++i) {
            const size_t at = static_cast<size_t>(r * candidates + i);
            kernel.residual(type, w, try_scale[at], try_zero[at], &residual[at * static_cast<size_t>(width)], width);
          }
        });
        gemm_f32(exec.pool, Trans::no, Trans::no, rows * candidates, width, width, 1, residual.data(), width,
                 metric.data(), width, 0, product.data(), width);
        exec.pool.parallel_for(rows, 4, [&](int64_t begin, int64_t end, int) {
          for (size_t at = static_cast<size_t>(begin * candidates); at < static_cast<size_t>(end * candidates); ++at)
            cost[at] += kernel.dot(&residual[at * static_cast<size_t>(width)],
                                   &product[at * static_cast<size_t>(width)], width);
        });
      }
      for (int64_t r = 0; r < rows; ++r) {
        size_t best = static_cast<size_t>(r * candidates);
        for (int64_t i = 1; i < candidates; ++i) {
          const size_t at = static_cast<size_t>(r * candidates + i);
          if (cost[at] < cost[best]) best = at;
        }
        scale_of[(row0 + r) * groups + g] = try_scale[best];
        zero_of[(row0 + r) * groups + g] = try_zero[best];
      }
    }
  }
}

LPQ_OP(clip, "gptq_clip");

}  // namespace
}  // namespace lpq::gptq
