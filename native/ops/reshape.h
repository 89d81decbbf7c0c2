// slice_columns, place_columns, transpose, copy_heads, copy, strided_matrix: elements moved, not computed with.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Of one dtype: x [R,W] is columns first .. first+W-1 of y [R,C], or the other way round.
struct SomeColumns {
  const Tensor &x, &y;
  int64_t first;

  // y [R,W] = columns first .. first+W-1 of x [R,C]; one dtype, any.
  static SomeColumns parse_slice(const Call& call) { return parse(call, "slice_columns", false); }
  // Columns first .. first+W-1 of y [R,C] = x [R,W], the others left as they are; one dtype, any.
  static SomeColumns parse_place(const Call& call) { return parse(call, "place_columns", true); }

 private:
  static SomeColumns parse(const Call& call, const char* op, bool place) {
    Arguments a(call, op);
    const Tensor &x = a.input("x", {-1, -1}), &y = a.output("y", {x.dtype}, {x.dim(0), -1});
    const int64_t first = a.integer("first"), width = (place ? x : y).dim(1), all = (place ? y : x).dim(1);
    require(first >= 0 && first + width <= all, "columns " + std::to_string(first) + " to " +
                                                    std::to_string(first + width) + " are not among the " +
                                                    std::to_string(all) + " of " + (place ? "y" : "x"));
    return a.done(), SomeColumns{x, y, first};
  }
};

// y [C,R] = xᵀ of x [R,C]; one dtype, any of 1 to 8 bytes; y is not x.
struct Transpose {
  const Tensor &x, &y;

  static Transpose parse(const Call& call) {
    Arguments a(call, "transpose");
    const Tensor &x = a.input("x", {-1, -1}), &y = a.output("y", {x.dtype}, {x.dim(1), x.dim(0)});
    require(x.elements() == 0 || y.raw() != x.raw(), "y must not be x");
    return a.done(), Transpose{x, y};
  }
};

// Part of every head copied: y[t][h][to .. to+width) = x[t][h][from .. from+width), the rest of y left as it is. x
// [T, heads*fromDim] (`shared`: [T, fromDim], one head for all), y [T, heads*toDim], of one dtype (on CUDA f32, f16 or
// bf16).
struct CopyHeads {
  const Tensor &x, &y;
  int64_t heads, width, from_dim, from, to_dim, to;
  bool shared;

  static CopyHeads parse(const Call& call) {
    Arguments a(call, "copy_heads");
    const CopyHeads of{a.input("x"),       a.output("y"),        a.integer("heads"),
                       a.integer("width"), a.integer("fromDim"), a.integer("from"),
                       a.integer("toDim"), a.integer("to"),      a.flag("shared")};
    require(of.heads > 0 && of.width >= 0,
            "heads is " + std::to_string(of.heads) + " and width " + std::to_string(of.width));
    inside(of.from, of.width, of.from_dim);
    inside(of.to, of.width, of.to_dim);
    require_shape(of.x, "x", {-1, (of.shared ? 1 : of.heads) * of.from_dim});
    require_tensor(of.y, "y", of.x.dtype, {of.x.dim(0), of.heads * of.to_dim});
    return a.done(), of;
  }

 private:
  static void inside(int64_t first, int64_t width, int64_t dim) {
    require(first >= 0 && first + width <= dim, "columns " + std::to_string(first) + " to " +
                                                    std::to_string(first + width) + " are not in a head of " +
                                                    std::to_string(dim));
  }
};

// Bytes from one tensor to another of as many, for benchmarks.
struct Copy {
  const Tensor &from, &to;

  static Copy parse(const Call& call) {
    Arguments a(call, "copy");
    const Tensor &from = a.input("from"), &to = a.output("to");
    require(from.bytes() == to.bytes(), "the tensors have different sizes");
    return a.done(), Copy{from, to};
  }
};

// CPU only: y[n][k] = x.flat[first + n*rowStep + k*columnStep]; y [N,K], x of the same dtype and any shape.
struct StridedMatrix {
  const Tensor &x, &y;
  int64_t first, row_step, column_step;

  static StridedMatrix parse(const Call& call) {
    Arguments a(call, "strided_matrix");
    const Tensor &x = a.input("x"), &y = a.output("y", {x.dtype}, {-1, -1});
    const StridedMatrix of{x, y, a.integer("first"), a.integer("rowStep"), a.integer("columnStep")};
    require(of.first >= 0 && of.row_step >= 0 && of.column_step >= 0,
            "first, rowStep and columnStep must not be negative");
    require(
        y.elements() == 0 || of.first + (y.dim(0) - 1) * of.row_step + (y.dim(1) - 1) * of.column_step < x.elements(),
        "the last element lies outside x of " + std::to_string(x.elements()) + " elements");
    return a.done(), of;
  }
};

}  // namespace lpq::ops
