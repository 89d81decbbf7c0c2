// layout_pack, layout_unpack.
#pragma once
#include "lpq/layout_plan.h"
#include "ops/arguments.h"

namespace lpq::ops {

// layout_pack: the words of a pack layout (src/layout/memory.ts) from a matrix: U8 codes [rows, columns], bitstream
// rows (streamed: U8 [rows, ceil(columns*bits/8)]; then `columns` says how many) or 16- and 32-bit elements, of any
// dtype of that width, at most as large as the layout; order I32 [columns] (optional): the source column of each.
// packed: any dtype. What is missing becomes pad (0), bias (0) is added to codes, and what the layout does not write
// becomes 0, or stays with `keep`. layout_unpack: the inverse, without order. The layout: lpq/layout_plan.h.
struct LayoutPack {
  const Tensor &matrix, &packed;
  const Tensor* order;
  layout::Spec spec;
  int64_t rows, columns, row_bytes;
  bool streamed, keep;
  uint32_t pad, bias;

  static LayoutPack parse_pack(const Call& call) {
    Arguments a(call, "layout_pack");
    const Tensor &matrix = a.input("matrix", {-1, -1}), &packed = a.output("packed");
    return read(a, matrix, packed, a.left() > 0 ? &a.input("order") : nullptr, a.flag("keep"));
  }
  static LayoutPack parse_unpack(const Call& call) {
    Arguments a(call, "layout_unpack");
    const Tensor &packed = a.input("packed"), &matrix = a.output("matrix", {-1, -1});
    return read(a, matrix, packed, nullptr, false);
  }

 private:
  static LayoutPack read(Arguments& a, const Tensor& matrix, const Tensor& packed, const Tensor* order, bool keep) {
    const layout::Spec spec = layout::read_spec(a.params({"bits", "modeDims", "modeSizes", "modeStrides", "modeStream",
                                                          "unit", "unitStride", "wordOrder", "base", "word"}),
                                                packed.bytes());
    const int64_t rows = matrix.dim(0), columns = a.integer("columns", matrix.dim(1)),
                  width = spec.bits <= 8 ? 1 : spec.bits / 8, pad = a.integer("pad", 0);
    const bool streamed = a.flag("streamed");
    require(static_cast<int64_t>(dtype_bytes(matrix.dtype)) == width,
            "matrix is " + std::string(dtype_name(matrix.dtype)) + ", not of " + std::to_string(8 * width) +
                " bits as the layout's elements");
    require(!streamed || spec.bits <= 8, "only codes of up to 8 bits come as a bitstream");
    const int64_t row_bytes = streamed ? (columns * spec.bits + 7) / 8 : columns * width;
    require(columns >= 0 && row_bytes == matrix.dim(1) * width,
            "the matrix has another number of columns than it was said to have");
    require(rows <= spec.extent[0] && columns <= spec.extent[1], "the matrix is larger than the layout");
    require(pad >= 0 && (spec.bits == 32 || pad < (1LL << spec.bits)), "the padding is not a code");
    if (order) require_tensor(*order, "order", DType::i32, {columns});
    const auto bias = static_cast<uint32_t>(a.integer("bias", 0));
    const LayoutPack of{
        matrix, packed, order, spec, rows, columns, row_bytes, streamed, keep, static_cast<uint32_t>(pad), bias};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
