// rmsnorm, layernorm, add_norm.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Where the rows to be normalised lie: whole rows of x, or with `first` and `runs` so many runs of columns of each, in
// place.
struct NormRows {
  int64_t count, width, runs, pitch, first;
  int64_t at(int64_t row) const { return row / runs * pitch + first + row % runs * width; }

  static NormRows read(Arguments& a, const Tensor& x, const Tensor& y, int64_t width) {
    const int64_t runs = a.integer("runs", 1);
    require(runs > 0, "runs is " + std::to_string(runs));
    const Columns columns = a.columns("first", x, "x", runs * width);
    require(x.dtype == DType::f32 || x.dtype == y.dtype, "y of a 16-bit x has another dtype");
    require(columns.pitch == runs * width || y.raw() == x.raw(), "some columns are normalised in place only");
    return {x.dim(0) * runs, width, runs, columns.pitch, columns.first};
  }
};

// A weight or bias of `size` elements, of any shape.
inline const Tensor* norm_vector(Arguments& a, const char* name, int64_t size) {
  if (a.left() == 0) return nullptr;
  const Tensor& vector = a.input(name);
  require_dtype(vector, name, kFloats);
  require(vector.elements() == size,
          std::string(name) + " has " + std::to_string(vector.elements()) + " elements, not " + std::to_string(size));
  return &vector;
}

// y = x / sqrt(mean(x^2) + eps) * (weight + offset), row by row; x, y f32, f16 or bf16 [T,C] (y of a 16-bit x of x's
// dtype), weight f32, f16 or bf16 [C], times 1 where absent; y may be x. With `first` and `runs` (1) instead, in place,
// so many runs of columns of each row from column `first` on, as wide as weight is long, or of `width` columns where it
// is absent. offset: 0.
struct Rmsnorm {
  const Tensor &x, &y;
  const Tensor* weight;
  NormRows rows;
  double eps;
  float offset;

  static Rmsnorm parse(const Call& call) {
    Arguments a(call, "rmsnorm");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &y = a.output("y", kFloats, x.shape);
    const Tensor* weight = a.input_if(a.left() > 0, "weight", kFloats, {-1});
    const int64_t width = weight ? weight->dim(0) : a.integer("width", x.dim(1));
    require(width > 0 || x.dim(1) == 0, "width is " + std::to_string(width));
    if (weight && a.integer("first", -1) < 0) require_shape(*weight, "weight", {x.dim(1)});
    const Rmsnorm of{x, y, weight, NormRows::read(a, x, y, width), a.number("eps"), a.real("offset", 0)};
    return a.done(), of;
  }
};

// y = (x - mean) / sqrt(var + eps) * (weight + offset) + bias, row by row (var: the mean of squared differences); x, y
// as of rmsnorm, weight and bias f32, f16 or bf16 [C], or [turns,C] where row t takes row t mod turns (1); 1 and 0
// where absent. y may be x. `first` and `runs` as of rmsnorm, of `width` columns each, which count as rows. offset: 0.
struct Layernorm {
  const Tensor &x, &y;
  const Tensor *weight, *bias;
  NormRows rows;
  int64_t turns;
  double eps;
  float offset;

  static Layernorm parse(const Call& call) {
    Arguments a(call, "layernorm");
    const Tensor &x = a.input("x", kFloats, {-1, -1}), &y = a.output("y", kFloats, x.shape);
    const int64_t width = a.integer("width", x.dim(1)), turns = a.integer("turns", 1);
    require(width > 0 || x.dim(1) == 0, "width is " + std::to_string(width));
    const NormRows rows = NormRows::read(a, x, y, width);
    require(turns > 0 && rows.count % turns == 0,
            "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(rows.count) + " rows");
    const Tensor *weight = norm_vector(a, "weight", turns * width), *bias = norm_vector(a, "bias", turns * width);
    const Layernorm of{x, y, weight, bias, rows, turns, a.number("eps"), a.real("offset", 0)};
    return a.done(), of;
  }
};

// h += y * scale, then x = what rmsnorm (kind rms) or layernorm (layer) makes of h; h f32 [T,C], y and x f32, f16 or
// bf16 (on CUDA x of a 16-bit y of its dtype), x not h. weight and bias as of those, an RMS norm's bias absent. scale:
// 1. On the CPU the bits of add, then the norm.
struct AddNorm {
  const Tensor &h, &y, &x;
  const Tensor *weight, *bias;
  bool layer;
  double eps;
  float offset, scale;

  static AddNorm parse(const Call& call) {
    Arguments a(call, "add_norm");
    a.input("h");  // which is the output of that name
    const Tensor& h = a.output("h", {DType::f32}, {-1, -1});
    const Tensor &y = a.input("y", kFloats, h.shape), &x = a.output("x", kFloats, h.shape);
    require(h.dim(0) == 0 || x.raw() != h.raw(), "x must not be h");
    const bool layer = a.one_of("kind", {"rms", "layer"}) == 1;
    require(layer || a.left() == 1, "an RMS norm has a weight and no bias");
    const Tensor *weight = norm_vector(a, "weight", h.dim(1)), *bias = norm_vector(a, "bias", h.dim(1));
    const AddNorm of{h, y, x, weight, bias, layer, a.number("eps"), a.real("offset", 0), a.real("scale", 1)};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
