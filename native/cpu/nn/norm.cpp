// rmsnorm, layernorm, add_norm.
#include "ops/norm.h"

#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

// `size` floats, plus `offset`; `otherwise` where there is no tensor.
std::vector<float> floats_of(const Tensor* from, int64_t size, float offset, float otherwise) {
  std::vector<float> to(static_cast<size_t>(size), otherwise);
  if (!from) return to;
  widen(*from, 0, size, to.data());
  for (float& value : to) value += offset;
  return to;
}

void rmsnorm(Call& call, Exec& exec) {
  const ops::Rmsnorm a(call);
  require_f32({{&a.x, "x"}, {&a.y, "y"}});
  const std::vector<float> gain = floats_of(a.weight, a.rows.width, a.offset, 1.0f);
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(a.rows.count, rows_grain(a.rows.width), [&](int64_t t) {
    vector_kernels().rmsnorm(from + a.rows.at(t), gain.data(), to + a.rows.at(t), a.rows.width, a.eps);
  });
}

void layernorm(Call& call, Exec& exec) {
  const ops::Layernorm a(call);
  require_f32({{&a.x, "x"}, {&a.y, "y"}});
  const int64_t width = a.rows.width, size = a.turns * width;
  const std::vector<float> gain = floats_of(a.weight, size, a.offset, 1.0f), bias = floats_of(a.bias, size, 0.0f, 0.0f);
  const float* from = a.x.data<float>();
  float* to = a.y.data<float>();
  exec.pool.for_each(a.rows.count, rows_grain(width), [&](int64_t t) {
    vector_kernels().layernorm(from + a.rows.at(t), gain.data() + t % a.turns * width,
                               bias.data() + t % a.turns * width, to + a.rows.at(t), width, a.eps);
  });
}

void add_norm(Call& call, Exec& exec) {
  const ops::AddNorm a(call);
  require_f32({{&a.x, "x"}});
  const int64_t rows = a.h.dim(0), c = a.h.dim(1);
  const std::vector<float> gain = floats_of(a.weight, c, a.offset, 1.0f), bias = floats_of(a.bias, c, 0.0f, 0.0f);
  float *sums = a.h.data<float>(), *to = a.x.data<float>();
  exec.pool.parallel_for(rows, rows_grain(c), [&](int64_t begin, int64_t end, int) {
    std::vector<float> wide(static_cast<size_t>(c));
    for (int64_t t = begin; t < end; ++t) {
      float* row = sums + t * c;
      widen(a.y, t * c, c, wide.data());
      vector_kernels().add_scaled(row, wide.data(), a.scale, row, c);
      if (a.layer) vector_kernels().layernorm(row, gain.data(), bias.data(), to + t * c, c, a.eps);
      else vector_kernels().rmsnorm(row, gain.data(), to + t * c, c, a.eps);
    }
  });
  if (a.codes) a.codes.quantize(a.x, [&](const char* op, Call& made) { op_table().at(op)(made, exec); });
}

}  // namespace
LPQ_OP(rmsnorm, "rmsnorm");
LPQ_OP(layernorm, "layernorm");
LPQ_OP(add_norm, "add_norm");
}  // namespace lpq::nn
