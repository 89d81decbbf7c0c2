// slice_columns, place_columns, transpose, copy_heads, copy, strided_matrix: elements moved, not computed with.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Of one dtype: x [R,W] is columns first .. first+W-1 of y [R,C], or the other way round.
struct SomeColumns : Arguments {
  bool places;
  const Tensor& x = input("x", {-1, -1});
  const Tensor& y = output("y", {x.dtype}, {x.dim(0), -1});
  int64_t first = integer("first");

  // y [R,W] = columns first .. first+W-1 of x [R,C]; or columns first .. first+W-1 of y [R,C] = x [R,W], the others
  // left as they are. One dtype, any.
  SomeColumns(const Call& call, bool to_place)
      : Arguments(call, to_place ? "place_columns" : "slice_columns"), places(to_place) {
    const int64_t width = (places ? x : y).dim(1), all = (places ? y : x).dim(1);
    require(first >= 0 && first + width <= all, "columns " + std::to_string(first) + " to " +
                                                    std::to_string(first + width) + " are not among the " +
                                                    std::to_string(all) + " of " + (places ? "y" : "x"));
    done();
  }
};

// y [C,R] = xᵀ of x [R,C]; one dtype, any of 1 to 8 bytes; y is not x.
struct Transpose : Arguments {
  const Tensor& x = input("x", {-1, -1});
  const Tensor& y = output("y", {x.dtype}, {x.dim(1), x.dim(0)});

  explicit Transpose(const Call& call) : Arguments(call, "transpose") {
    require(x.elements() == 0 || y.raw() != x.raw(), "y must not be x");
    done();
  }
};

// Part of every head copied: y[t][h][to .. to+width) = x[t][h][from .. from+width), the rest of y left as it is. x
// [T, heads*fromDim] (`shared`: [T, fromDim], one head for all), y [T, heads*toDim], of one dtype (on CUDA f32, f16 or
// bf16).
struct CopyHeads : Arguments {
  const Tensor &x = input("x"), &y = output("y");
  int64_t heads = integer("heads"), width = integer("width");
  int64_t from_dim = integer("fromDim"), from = integer("from"), to_dim = integer("toDim"), to = integer("to");
  bool shared = flag("shared");

  explicit CopyHeads(const Call& call) : Arguments(call, "copy_heads") {
    require(heads > 0 && width >= 0, "heads is " + std::to_string(heads) + " and width " + std::to_string(width));
    for (const auto& [first, dim] : {std::pair{from, from_dim}, {to, to_dim}})
      require(first >= 0 && first + width <= dim, "columns " + std::to_string(first) + " to " +
                                                      std::to_string(first + width) + " are not in a head of " +
                                                      std::to_string(dim));
    require_shape(x, "x", {-1, (shared ? 1 : heads) * from_dim});
    require_tensor(y, "y", x.dtype, {x.dim(0), heads * to_dim});
    done();
  }
};

// Bytes from one tensor to another of as many, for benchmarks.
struct Copy : Arguments {
  const Tensor &from = input("from"), &to = output("to");

  explicit Copy(const Call& call) : Arguments(call, "copy") {
    require(from.bytes() == to.bytes(), "the tensors have different sizes");
    done();
  }
};

// CPU only: y[n][k] = x.flat[first + n*rowStep + k*columnStep]; y [N,K], x of the same dtype and any shape.
struct StridedMatrix : Arguments {
  const Tensor& x = input("x");
  const Tensor& y = output("y", {x.dtype}, {-1, -1});
  int64_t first = integer("first"), row_step = integer("rowStep"), column_step = integer("columnStep");

  explicit StridedMatrix(const Call& call) : Arguments(call, "strided_matrix") {
    require(first >= 0 && row_step >= 0 && column_step >= 0, "first, rowStep and columnStep must not be negative");
    require(y.elements() == 0 || first + (y.dim(0) - 1) * row_step + (y.dim(1) - 1) * column_step < x.elements(),
            "the last element lies outside x of " + std::to_string(x.elements()) + " elements");
    done();
  }
};

}  // namespace lpq::ops
