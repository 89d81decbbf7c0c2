// rmsnorm, layernorm, add_norm.
#pragma once
#include "ops/token_codes.h"

namespace lpq::ops {

// Where the rows to be normalised lie: whole rows of x, or with `first` and `runs` so many runs of columns of each, in
// place.
struct NormRows {
  int64_t count, width, runs, pitch, first;
  int64_t at(int64_t row) const { return row / runs * pitch + first + row % runs * width; }

  static NormRows read(Arguments& a, const Tensor& x, const Tensor& y, int64_t width) {
    const int64_t runs = a.at_least(1, "runs", 1);
    const Columns columns = a.some_columns("first", x, "x", runs * width);
    require(x.dtype == f32 || x.dtype == y.dtype, "y of a 16-bit x has another dtype");
    require(columns.pitch == runs * width || y.raw() == x.raw(), "some columns are normalised in place only");
    return {x.dim(0) * runs, width, runs, columns.pitch, columns.first};
  }
};

inline int64_t row_width(int64_t width, const Tensor& x) {
  require(width > 0 || x.dim(1) == 0, "width is " + std::to_string(width));
  return width;
}

// A weight or bias of `size` elements, of any shape.
inline const Tensor* norm_vector(Arguments& a, const char* name, int64_t size) {
  if (a.left() == 0) return nullptr;
  const Tensor& vector = a.input(name, kFloats);
  require(vector.elements() == size,
          std::string(name) + " has " + std::to_string(vector.elements()) + " elements, not " + std::to_string(size));
  return &vector;
}

// y = x / sqrt(mean(x^2) + eps) * (weight + offset), row by row; x, y f32, f16 or bf16 [T,C] (y of a 16-bit x of x's
// dtype), weight f32, f16 or bf16 [C], times 1 where absent; y may be x. With `first` and `runs` (1) instead, in place,
// so many runs of columns of each row from column `first` on, as wide as weight is long, or of `width` columns where it
// is absent. offset: 0.
struct Rmsnorm : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& y = output("y", kFloats, x.shape);
  const Tensor* weight = last_input("weight", kFloats, {integer("first", -1) < 0 ? x.dim(1) : -1});
  int64_t width = row_width(integer("width", weight ? weight->dim(0) : x.dim(1)), x);
  NormRows rows = NormRows::read(*this, x, y, width);
  double eps = number("eps");
  float offset = real("offset", 0);

  explicit Rmsnorm(const Call& call) : Arguments(call, "rmsnorm") {
    require(!weight || weight->dim(0) == width,
            "weight does not have the " + std::to_string(width) + " columns of a run");
    done();
  }
};

// y = (x - mean) / sqrt(var + eps) * (weight + offset) + bias, row by row (var: the mean of squared differences); x, y
// as of rmsnorm, weight and bias f32, f16 or bf16 [C], or [turns,C] where row t takes row t mod turns (1); 1 and 0
// where absent. y may be x. `first` and `runs` as of rmsnorm, of `width` columns each, which count as rows. offset: 0.
struct Layernorm : Arguments {
  const Tensor& x = input("x", kFloats, {-1, -1});
  const Tensor& y = output("y", kFloats, x.shape);
  int64_t width = row_width(integer("width", x.dim(1)), x), turns = integer("turns", 1), size = width * turns;
  NormRows rows = NormRows::read(*this, x, y, width);
  const Tensor* weight = norm_vector(*this, "weight", size);
  const Tensor* bias = norm_vector(*this, "bias", size);
  double eps = number("eps");
  float offset = real("offset", 0);

  explicit Layernorm(const Call& call) : Arguments(call, "layernorm") {
    require(turns > 0 && rows.count % turns == 0,
            "turns is " + std::to_string(turns) + ", which does not divide " + std::to_string(rows.count) + " rows");
    done();
  }
};

// h += y * scale, then x = what rmsnorm (kind rms) or layernorm (layer) makes of h; h f32 [T,C], y and x f32, f16 or
// bf16 (on CUDA x of a 16-bit y of its dtype), x not h. weight and bias as of those, an RMS norm's bias absent. scale:
// 1. On the CPU the bits of add, then the norm. Codes of x, too, where they are given.
struct AddNorm : Arguments {
  const Tensor& h = in_place("h", {f32}, {-1, -1});
  const Tensor& y = input("y", kFloats, h.shape);
  const Tensor& x = output("x", kFloats, h.shape);
  TokenCodes codes = TokenCodes::read(*this, x, &Arguments::output);
  bool layer = one_of("kind", {"rms", "layer"}) == 1, weighed = left() == 1;
  const Tensor* weight = norm_vector(*this, "weight", h.dim(1));
  const Tensor* bias = norm_vector(*this, "bias", h.dim(1));
  double eps = number("eps");
  float offset = real("offset", 0), scale = real("scale", 1);

  explicit AddNorm(const Call& call) : Arguments(call, "add_norm") {
    require(h.dim(0) == 0 || x.raw() != h.raw(), "x must not be h");
    require(layer || weighed, "an RMS norm has a weight and no bias");
    done();
  }
};

}  // namespace lpq::ops
