// What a product of the packed format (gemm_packed) is to its kernels.
#pragma once
#include <string>

#include "cuda/gemm/families/operands.h"
#include "cuda/gemm/families/packed.h"
#include "cuda/gemm/family.h"
#include "ops/gemm_packed.h"

namespace lpq::cuda {

constexpr int kMostExactTokens = 64;  // of kernels with wgmma; more are multiplied with weights that were rounded
// The same where the kernel of scaled weights has tiles of fewer tokens: for floats of up to 4 bits, whose casts take
// longest, and for all else. Up to kMostExactWide the wide kernel may be chosen all the same.
constexpr int kMostExactWide = 32, kMostExactNarrow = 16;
constexpr int kMostPortableTokens = 16;  // the same without wgmma

// What products of the packed format have in common, of one weight or of experts'.
struct PackedForm {
  ops::GemmSettings wish;
  std::string name;     // of the type and of x: TYPE_X
  GemmPackedArgs args;  // of the whole product: all but its cut and its rows
  bool integer, bf16;
  int bits, side_bytes;  // side: scales and zero points of a packed block

  template <class Op>
  PackedForm(const Op& op, int64_t n_blocks, int64_t k_blocks)
      : PackedForm(op.settings, op.type, op.x.dtype, op.weights, op.scales, op.zeros, op.zero, op.group_size) {
    args.bias = op.bias ? op.bias->template data<uint16_t>() : nullptr;
    args.y = op.y.template data<uint16_t>();
    args.m = static_cast<int>(op.m), args.n = static_cast<int>(op.n), args.k = static_cast<int>(op.k);
    args.n_blocks = static_cast<int>(n_blocks), args.k_blocks = static_cast<int>(k_blocks);
    args.groups = static_cast<int>(op.groups);
  }
  bool asked() const { return !wish.kernel.empty(); }
  // Weights as a kernel of many tokens rounds them, as if they were dequantized first, fit the activations' type.
  bool may_round() const { return bf16 || !args.scale_bf16; }

 private:
  PackedForm(const ops::GemmSettings& settings, const QuantType& type, DType x, const Tensor& weights,
             const Tensor& scales, const Tensor* zeros, double zero, int64_t group_size);
};

struct PackedProblem : PackedForm {
  const ops::GemmPacked& op;

  explicit PackedProblem(const ops::GemmPacked& op);
  double bytes() const { return static_cast<double>(args.n_blocks) * args.k_blocks * (512 * bits + side_bytes); }
};

// Rows of x and y as kernels take them, K in whole `unit`s.
struct PackedRows {
  PaddedRows rows;
  GemmPackedArgs args;
  // The operation before wrote neither weights nor scales nor zero points: they may be read while it ends.
  bool untouched;
  PackedRows(const PackedProblem& problem, int unit, CudaExec& exec);
  // `count` tokens from `first` on.
  GemmPackedArgs from(int64_t first, int64_t count) const;
};

// Whether the wide kernel takes what was timed and was its fastest (docs/internals/kernels/wide.md).
bool wide_was_timed(const PackedProblem& p);

// The microseconds of a kernel of wgmma for up to 16 tokens: its bytes' time, a tenth more, and a start.
inline double few_tokens_microseconds(const PackedProblem& p) { return 10.5 + 1.1 * p.bytes() / 4.2e6; }

extern const Family<PackedProblem> kStreamFamily, kScaledFamily, kWideFamily, kHopperFamily, kLargeFamily,
    kPortableFamily;

}  // namespace lpq::cuda
