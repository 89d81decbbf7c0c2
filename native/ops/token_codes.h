// Codes that an operation makes beside a matrix of activations, for gemm_act.
#pragma once
#include "ops/arguments.h"

namespace lpq::ops {

// Two further outputs, where they are given: what quantize_tokens (ops/w4ax.h) makes of the output x [T,C], codes i8 or
// f8_e4m3 [T,C] and scales f32 [T]. The bytes are those of quantize_tokens, and so are its failures.
struct TokenCodes {
  const Tensor *codes = nullptr, *scales = nullptr;
  explicit operator bool() const { return codes != nullptr; }

  static TokenCodes read(Arguments& a, const Tensor& x, const Tensor& (Arguments::*output)(const char*, Types)) {
    if (!a.outputs_left()) return {};
    require_shape(x, "what codes are made of", {-1, -1});
    TokenCodes t{&(a.*output)("codes", {i8, f8_e4m3}), &(a.*output)("scales", {f32})};
    require_shape(*t.codes, "codes", x.shape);
    require_shape(*t.scales, "scales", {x.dim(0)});
    return t;
  }
  // quantize_tokens itself, for who makes x first; run: an operation by its name.
  template <class Run>
  void quantize(const Tensor& x, const Run& run) const {
    Call call;
    call.in = {x}, call.out = {*codes, *scales};
    run("quantize_tokens", call);
  }
};

}  // namespace lpq::ops
