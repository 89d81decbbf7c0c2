#include "cpu/nn/cast.h"
#include "ops/elementwise.h"

namespace lpq::nn {
namespace {

void scale_rows(Call& call, Exec& exec) {
  const ops::ScaleRows a(call);
  require_f32({{&a.x, "x"}});
  std::vector<float> scales(static_cast<size_t>(a.scales ? a.scales->elements() : 1), 1.0f);
  if (a.scales) widen(*a.scales, 0, static_cast<int64_t>(scales.size()), scales.data());
  const float* from = a.x.data<float>() + a.columns.first;
  float* to = a.y.data<float>() + a.columns.first;
  exec.pool.for_each(a.x.dim(0), rows_grain(a.width), [&](int64_t t) {
    const float by = scales[scales.size() == 1 ? 0 : static_cast<size_t>(t)] * a.factor;
    vector_kernels().scale(from + t * a.columns.pitch, by, to + t * a.columns.pitch, a.width);
  });
}

}  // namespace
LPQ_OP(scale_rows, "scale_rows");
}  // namespace lpq::nn
