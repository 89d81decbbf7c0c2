#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

void rmsnorm(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &weight = call.input(1), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t rows = x.dim(0), c = x.dim(1);
  require_dtype(weight, "weight", {DType::f32, DType::f16, DType::bf16});
  require_shape(weight, "weight", {c});
  require_tensor(y, "y", DType::f32, {rows, c});
  const double eps = call.params.number("eps");
  const float offset = static_cast<float>(call.params.number("offset", 0.0));
  std::vector<float> gain(static_cast<size_t>(c));
  widen(weight, 0, c, gain.data());
  for (float& g : gain) g += offset;
  const float* from = x.data<float>();
  float* to = y.data<float>();
  exec.pool.parallel_for(rows, rows_grain(c), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) vector_kernels().rmsnorm(from + t * c, gain.data(), to + t * c, c, eps);
  });
}

void layernorm(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_tensor(x, "x", DType::f32, {-1, -1});
  const int64_t rows = x.dim(0), c = x.dim(1);
  require_tensor(y, "y", DType::f32, {rows, c});
  const double eps = call.params.number("eps");
  // Row t takes row t mod `turns` of the weight.
  const int64_t turns = call.params.integer("turns", 1), size = turns * c;
  require(turns > 0 && rows % turns == 0,
          "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(rows) + " rows");
  std::vector<float> gain(static_cast<size_t>(size), 1.0f), bias(static_cast<size_t>(size), 0.0f);
  const auto read = [&](size_t input, const char* name, float* to) {
    if (call.in.size() <= input) return;
    const Tensor& from = call.input(input);
    require_dtype(from, name, {DType::f32, DType::f16, DType::bf16});
    require(from.elements() == size, std::string(name) + " has " + std::to_string(from.elements()) + " elements, not " +
                                         std::to_string(size));
    widen(from, 0, size, to);
  };
  read(1, "weight", gain.data());
  read(2, "bias", bias.data());
  const float* from = x.data<float>();
  float* to = y.data<float>();
  exec.pool.parallel_for(rows, rows_grain(c), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      vector_kernels().layernorm(from + t * c, gain.data() + t % turns * c, bias.data() + t % turns * c, to + t * c, c, eps);
  });
}

}  // namespace
LPQ_OP(rmsnorm, "rmsnorm");
LPQ_OP(layernorm, "layernorm");
}  // namespace lpq::nn
