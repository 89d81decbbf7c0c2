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
struct LayoutPack : Arguments {
  bool packs;
  const Tensor& matrix = packs ? input("matrix", {-1, -1}) : output("matrix", {-1, -1});
  const Tensor& packed = packs ? output("packed") : input("packed");
  layout::Spec spec = layout::read_spec(*this, packed.bytes());
  int64_t rows = matrix.dim(0), columns = integer("columns", matrix.dim(1));
  bool streamed = flag("streamed"), keep = packs && flag("keep");
  int64_t width = spec.bits <= 8 ? 1 : spec.bits / 8;  // bytes of an element
  int64_t row_bytes = streamed ? (columns * spec.bits + 7) / 8 : columns * width;
  const Tensor* order = input_if(packs && left() > 0, "order", {i32}, {columns});
  uint32_t pad = read_pad(), bias = static_cast<uint32_t>(integer("bias", 0));

  LayoutPack(const Call& call, bool to_pack)
      : Arguments(call, to_pack ? "layout_pack" : "layout_unpack"), packs(to_pack) {
    require(static_cast<int64_t>(dtype_bytes(matrix.dtype)) == width,
            "matrix is " + std::string(dtype_name(matrix.dtype)) + ", not of " + std::to_string(8 * width) +
                " bits as the layout's elements");
    require(!streamed || spec.bits <= 8, "only codes of up to 8 bits come as a bitstream");
    require(columns >= 0 && row_bytes == matrix.dim(1) * width,
            "the matrix has another number of columns than it was said to have");
    require(rows <= spec.extent[0] && columns <= spec.extent[1], "the matrix is larger than the layout");
    done();
  }

 private:
  uint32_t read_pad() {
    const int64_t code = integer("pad", 0);
    require(code >= 0 && (spec.bits == 32 || code < (1LL << spec.bits)), "the padding is not a code");
    return static_cast<uint32_t>(code);
  }
};

}  // namespace lpq::ops
