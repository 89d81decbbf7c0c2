// What a product of codes (gemm_act, gemm_comet) is to its kernels.
#pragma once
#include "cuda/gemm/families/w4ax.h"
#include "cuda/gemm/family.h"
#include "ops/gemm_act.h"
#include "ops/gemm_comet.h"

namespace lpq::cuda {

struct W4axProblem {
  const char* kind;  // of lpq_gemm_act8_KIND_FORM
  bool nibbles;      // weights of 4 bits
  const Tensor &x, &w, &x_scales, &w_scales, &y;
  const Tensor* factors;  // whole ones of groups, or null
  const Tensor* bias;
  const ops::W4axBlocks* blocks;  // W4Ax, whose blocks of 8 bits x has; else null
  int64_t m, n, k;
  ops::GemmSettings wish;
  bool asked() const { return !wish.kernel.empty(); }
  const float* bias_data() const { return bias ? bias->data<float>() : nullptr; }
  int store() const {
    return y.dtype == DType::f32 ? kW4axStoreF32 : y.dtype == DType::bf16 ? kW4axStoreBf16 : kW4axStoreF16;
  }
};

// gemm_act has the first alone, gemm_comet all.
extern const Family<W4axProblem> kAct8Family, kW4axFewFamily, kW4axMmaFamily;

}  // namespace lpq::cuda
