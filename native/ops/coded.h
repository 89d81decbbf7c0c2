// coded_bytes, lay_codes and linear_codes: products on the CPU over codes of 1 to 8 bits, as cpu/packed/form.h lays
// them.
#pragma once
#include "ops/quant.h"

namespace lpq::ops {

// What a weight's codes are: [N,K] of a type, in groups of `group` neighbouring columns (a multiple of 32, or 0: one
// scale a row), with a zero point a group or `zero` for all. `ordered`: column j multiplies another column of x.
struct CodedWeight : Arguments {
  QuantType type = quant_type();
  int64_t n = at_least(1, "n"), k = at_least(1, "k"), group = at_least(0, "group");
  bool has_zeros = flag("hasZeros"), ordered = flag("ordered");
  float zero = real("zero", 0), global = real("global", 1);

  using Arguments::Arguments;
  int64_t groups() const { return group ? (k + group - 1) / group : 1; }
};

// bytes I64 [1] of the block that lay_codes fills.
struct CodedBytes : CodedWeight {
  const Tensor& bytes = output("bytes", {i64}, {1});

  explicit CodedBytes(const Call& call) : CodedWeight(call, "coded_bytes") { done(); }
};

// block u8 [B] of codes U8 [N,K], one a byte, scales [N,G], zeros likewise; W = (decode(code) - zero) * (scale *
// global). order I32 [2,K], where `ordered`: which column of the codes stands at each place, and which of x it
// multiplies.
struct LayCodes : CodedWeight {
  const Tensor& codes = input("codes", {u8}, {n, k});
  const Tensor& scales = input("scales", kScaleTypes, {n, groups()});
  const Tensor* zeros = input_if(has_zeros, "zeros", kZeroTypes, scales.shape);
  const Tensor* order = input_if(ordered, "order", {i32}, {2, k});
  const Tensor& block = output("block", {u8}, {-1});

  explicit LayCodes(const Call& call) : CodedWeight(call, "lay_codes") {
    require(type.kind == QuantType::Kind::integer || (!has_zeros && zero == 0),
            "floating-point types have no zero points");
    done();
  }
};

// y = x Wᵀ + bias; x f32 [T,K], block of lay_codes, bias f32 [N] (optional), y f32 [T,N], not x. Sums as
// cpu/packed/form.h says, then the bias.
struct LinearCodes : Arguments {
  const Tensor& x = input("x", {f32}, {-1, -1});
  const Tensor& block = input("block", {u8}, {-1});
  const Tensor& y = output("y", {f32}, {x.dim(0), -1});
  const Tensor* bias = last_input("bias", {f32}, {y.dim(1)});

  explicit LinearCodes(const Call& call) : Arguments(call, "linear_codes") {
    require(y.raw() != x.raw() || y.elements() == 0, "y must not be x");
    done();
  }
};

}  // namespace lpq::ops
