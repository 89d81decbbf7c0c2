// rmsnorm, layernorm, add_norm. Contracts: native/ops.ts.
#include <vector>

#include "cpu/nn/cast.h"

namespace lpq::nn {
namespace {

// Where the rows to be normalised lie: whole rows of x, or with `first` and `runs` so many runs of columns of each, in
// place.
struct Rows {
  int64_t count, width, runs, pitch, first;
  int64_t at(int64_t row) const { return row / runs * pitch + first + row % runs * width; }
};

Rows rows_of(const Call& call, const Tensor& x, const Tensor& y, int64_t width) {
  const int64_t runs = call.params.integer("runs", 1);
  require(runs > 0, "runs is " + std::to_string(runs));
  require_dtype(x, "x", {DType::f32});
  const Columns columns = columns_of(call.params, "first", x, "x", runs * width);
  require_tensor(y, "y", DType::f32, x.shape);
  require(columns.pitch == runs * width || y.raw() == x.raw(), "some columns are normalised in place only");
  return {x.dim(0) * runs, width, runs, columns.pitch, columns.first};
}

std::vector<float> gains(const Tensor& weight, float offset) {
  std::vector<float> gain(static_cast<size_t>(weight.elements()));
  widen(weight, 0, weight.elements(), gain.data());
  for (float& g : gain) g += offset;
  return gain;
}

// Vectors of `turns` rows, row t taking row t mod turns; `otherwise` where there is none.
std::vector<float> vector_of(const Call& call, size_t input, const char* name, int64_t size, float otherwise) {
  std::vector<float> to(static_cast<size_t>(size), otherwise);
  if (call.in.size() <= input) return to;
  const Tensor& from = call.input(input);
  require_dtype(from, name, {DType::f32, DType::f16, DType::bf16});
  require(from.elements() == size,
          std::string(name) + " has " + std::to_string(from.elements()) + " elements, not " + std::to_string(size));
  widen(from, 0, size, to.data());
  return to;
}

void rmsnorm(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &weight = call.input(1), &y = call.output(0);
  require_dtype(weight, "weight", {DType::f32, DType::f16, DType::bf16});
  require_shape(x, "x", {-1, -1});
  const bool some = call.params.integer("first", -1) >= 0;
  if (!some) require_shape(weight, "weight", {x.dim(1)});
  require_shape(weight, "weight", {-1});
  const Rows rows = rows_of(call, x, y, weight.dim(0));
  const double eps = call.params.number("eps");
  const std::vector<float> gain = gains(weight, static_cast<float>(call.params.number("offset", 0.0)));
  const float* from = x.data<float>();
  float* to = y.data<float>();
  exec.pool.parallel_for(rows.count, rows_grain(rows.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      vector_kernels().rmsnorm(from + rows.at(t), gain.data(), to + rows.at(t), rows.width, eps);
  });
}

void layernorm(Call& call, Exec& exec) {
  const Tensor &x = call.input(0), &y = call.output(0);
  require_shape(x, "x", {-1, -1});
  const int64_t width = call.params.integer("width", x.dim(1));
  require(width > 0 || x.dim(1) == 0, "width is " + std::to_string(width));
  const Rows rows = rows_of(call, x, y, width);
  const double eps = call.params.number("eps");
  // Row t takes row t mod `turns` of the weight.
  const int64_t turns = call.params.integer("turns", 1), size = turns * width;
  require(turns > 0 && rows.count % turns == 0,
          "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(rows.count) + " rows");
  const std::vector<float> gain = vector_of(call, 1, "weight", size, 1.0f),
                           bias = vector_of(call, 2, "bias", size, 0.0f);
  const float* from = x.data<float>();
  float* to = y.data<float>();
  exec.pool.parallel_for(rows.count, rows_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      vector_kernels().layernorm(from + rows.at(t), gain.data() + t % turns * width, bias.data() + t % turns * width,
                                 to + rows.at(t), width, eps);
  });
}

void add_norm(Call& call, Exec& exec) {
  const Tensor &h = call.output(0), &y = call.input(1), &x = call.output(1);
  require_tensor(h, "h", DType::f32, {-1, -1});
  const int64_t rows = h.dim(0), c = h.dim(1);
  require_dtype(y, "y", {DType::f32, DType::f16, DType::bf16});
  require_shape(y, "y", {rows, c});
  require_tensor(x, "x", DType::f32, {rows, c});
  require(rows == 0 || x.raw() != h.raw(), "x must not be h");
  const std::string& kind = call.params.text("kind");
  require(kind == "rms" || kind == "layer", "kind is '" + kind + "', not rms or layer");
  const bool layer = kind == "layer";
  require(layer || call.in.size() == 3, "an RMS norm has a weight and no bias");
  const double eps = call.params.number("eps");
  const float offset = static_cast<float>(call.params.number("offset", 0.0)),
              scale = static_cast<float>(call.params.number("scale", 1.0));
  std::vector<float> gain = vector_of(call, 2, "weight", c, 1.0f);
  const std::vector<float> bias = vector_of(call, 3, "bias", c, 0.0f);
  if (!layer)
    for (float& g : gain) g += offset;
  float *sums = h.data<float>(), *to = x.data<float>();
  exec.pool.parallel_for(rows, rows_grain(c), [&](int64_t begin, int64_t end, int) {
    std::vector<float> wide(static_cast<size_t>(c));
    for (int64_t t = begin; t < end; ++t) {
      float* row = sums + t * c;
      widen(y, t * c, c, wide.data());
      vector_kernels().add_scaled(row, wide.data(), scale, row, c);
      if (layer) vector_kernels().layernorm(row, gain.data(), bias.data(), to + t * c, c, eps);
      else vector_kernels().rmsnorm(row, gain.data(), to + t * c, c, eps);
    }
  });
}

}  // namespace
LPQ_OP(rmsnorm, "rmsnorm");
LPQ_OP(layernorm, "layernorm");
LPQ_OP(add_norm, "add_norm");
}  // namespace lpq::nn
