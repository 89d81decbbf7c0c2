// embedding, neg_log_likelihood, pack_rows, unpack_rows.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// y[t] = table[ids[t]] * scale (1); ids I32 [T], table f32, f16 or bf16 [V,C], y f32 [T,C]. An id outside the table:
// LPQ_NATIVE_ARGUMENT.
struct Embedding : Arguments {
  const Tensor& ids = input("ids", {i32}, {-1});
  const Tensor& table = input("table", kFloats, {-1, -1});
  const Tensor& y = output("y", {f32}, {ids.dim(0), table.dim(1)});
  float scale = real("scale", 1);

  explicit Embedding(const Call& call) : Arguments(call, "embedding") { done(); }
};

// nll f64 [T] = -log softmax(logits)[target], 0 where targets I32 [T] is -1; logits f32 [T,V], arithmetic in f64. Any
// other target outside the vocabulary: LPQ_NATIVE_ARGUMENT.
struct NegLogLikelihood : Arguments {
  const Tensor& logits = input("logits", {f32}, {-1, -1});
  const Tensor& targets = input("targets", {i32}, {logits.dim(0)});
  const Tensor& nll = output("nll", {f64}, {logits.dim(0)});

  explicit NegLogLikelihood(const Call& call) : Arguments(call, "neg_log_likelihood") { done(); }
};

// Rows as 16 bits: y f16 [T,C] = x * scale rounded to nearest even, x f32 [T,C], scales f32 [T]: the power of two that
// brings the largest |y| of the row into [2^14, 2^15), never above 2^127; 1 where all is 0. Infinity and NaN stay and
// do not count. The same bytes on every device.
struct PackRows : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& y = output("y", {f16}, x.shape);
  const Tensor& scales = output("scales", {f32}, {x.dim(0)});

  explicit PackRows(const Call& call) : Arguments(call, "pack_rows") { done(); }
};

// x = y / scales, exactly; y f16 [T,C], scales f32 [T] of pack_rows, x f32 [T,C].
struct UnpackRows : Arguments {
  const Tensor& y = input("y", {f16}, {-1, -1});
  const Tensor& scales = input("scales", {f32}, {y.dim(0)});
  const Tensor& x = output("x", {f32}, y.shape);

  explicit UnpackRows(const Call& call) : Arguments(call, "unpack_rows") { done(); }
};

}  // namespace lpq::ops
