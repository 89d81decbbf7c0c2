// embedding, neg_log_likelihood, pack_rows, unpack_rows.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// y[t] = table[ids[t]] * scale (1); ids I32 [T], table f32, f16 or bf16 [V,C], y f32 [T,C]. An id outside the table:
// LPQ_NATIVE_ARGUMENT.
struct Embedding {
  const Tensor &ids, &table, &y;
  float scale;

  static Embedding parse(const Call& call) {
    Arguments a(call, "embedding");
    const Tensor &ids = a.input("ids", {DType::i32}, {-1}), &table = a.input("table", kFloats, {-1, -1});
    const Embedding of{ids, table, a.output("y", {DType::f32}, {ids.dim(0), table.dim(1)}), a.real("scale", 1)};
    return a.done(), of;
  }
};

// nll f64 [T] = -log softmax(logits)[target], 0 where targets I32 [T] is -1; logits f32 [T,V], arithmetic in f64. Any
// other target outside the vocabulary: LPQ_NATIVE_ARGUMENT.
struct NegLogLikelihood {
  const Tensor &logits, &targets, &nll;

  static NegLogLikelihood parse(const Call& call) {
    Arguments a(call, "neg_log_likelihood");
    const Tensor& logits = a.input("logits", {DType::f32}, {-1, -1});
    const NegLogLikelihood of{logits, a.input("targets", {DType::i32}, {logits.dim(0)}),
                              a.output("nll", {DType::f64}, {logits.dim(0)})};
    return a.done(), of;
  }
};

// Rows as 16 bits: y f16 [T,C] = x * scale rounded to nearest even, x f32 [T,C], scales f32 [T]: the power of two that
// brings the largest |y| of the row into [2^14, 2^15), never above 2^127; 1 where all is 0. Infinity and NaN stay and
// do not count. The same bytes on every device.
struct PackRows {
  const Tensor &x, &y, &scales;

  static PackRows parse(const Call& call) {
    Arguments a(call, "pack_rows");
    const Tensor& x = a.input("x", {DType::f32}, {-1, -1});
    const PackRows of{x, a.output("y", {DType::f16}, x.shape), a.output("scales", {DType::f32}, {x.dim(0)})};
    return a.done(), of;
  }
};

// x = y / scales, exactly; y f16 [T,C], scales f32 [T] of pack_rows, x f32 [T,C].
struct UnpackRows {
  const Tensor &y, &scales, &x;

  static UnpackRows parse(const Call& call) {
    Arguments a(call, "unpack_rows");
    const Tensor& y = a.input("y", {DType::f16}, {-1, -1});
    const UnpackRows of{y, a.input("scales", {DType::f32}, {y.dim(0)}), a.output("x", {DType::f32}, y.shape)};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
