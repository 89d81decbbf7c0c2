// two_level_scales: a row's scales as one number times whole factors (lpq/two_level.h).
#include "lpq/two_level.h"

#include <vector>

#include "cpu/nn/cast.h"
#include "ops/quant.h"

namespace lpq {
namespace {

void two_level_scales(Call& call, Exec& exec) {
  const ops::TwoLevelScales a(call);
  const int64_t n = a.scale.dim(0), groups = a.scale.dim(1);
  const TwoLevel grid = a.dtype == DType::f16 ? TwoLevel::f16() : TwoLevel::f32();
  exec.pool.for_each(n, 16, [&](int64_t row) {
    float* scale = a.scale.data<float>() + row * groups;
    const std::vector<float> ideal(scale, scale + groups);
    const float* energy = a.energy.data<float>() + row * groups;
    const double largest = TwoLevel::largest(ideal.data(), energy, groups);
    TwoLevel::Try best{1.0, INFINITY};
    for (int i = 0; largest > 0 && i < TwoLevel::kTries; ++i) {
      const TwoLevel::Try now = grid.attempt(ideal.data(), energy, groups, largest, i);
      if (now.price < best.price) best = now;
    }
    for (int64_t g = 0; g < groups; ++g)
      scale[g] = static_cast<float>(
          (energy[g] > 0 ? TwoLevel::factor(ideal[static_cast<size_t>(g)] / best.channel, scale[g]) : 1) *
          best.channel);
  });
}

void group_energy(Call& call, Exec& exec) {
  const ops::GroupEnergy a(call);
  const int64_t n = a.w.dim(0), k = a.w.dim(1), groups = a.energy.dim(1);
  const float* m = a.m ? a.m->data<float>() : nullptr;
  const int32_t* group = a.group.data<int32_t>();
  for (int64_t j = 0; j < k; ++j)
    require(group[j] >= 0 && group[j] < groups, "group holds an index outside the energies");
  exec.pool.for_each(n, 16, [&](int64_t row) {
    std::vector<float> line(static_cast<size_t>(k));
    std::vector<double> sum(static_cast<size_t>(groups));
    nn::widen(a.w, row * k, k, line.data());
    for (int64_t j = 0; j < k; ++j) {
      const double x = line[static_cast<size_t>(j)];
      sum[static_cast<size_t>(group[j])] += m ? x * x * m[j * k + j] : x * x;
    }
    for (int64_t g = 0; g < groups; ++g)
      a.energy.data<float>()[row * groups + g] = static_cast<float>(sum[static_cast<size_t>(g)]);
  });
}

LPQ_OP(group_energy, "group_energy");
LPQ_OP(two_level_scales, "two_level_scales");

}  // namespace
}  // namespace lpq
