// What the operations' arguments have in common.
#pragma once
#include "lpq/arguments.h"

namespace lpq::ops {

using enum DType;

// What weights may be, and activations on CUDA.
inline constexpr Types kFloats = {f32, f16, bf16};
inline constexpr Types kHalves = {f16, bf16};

}  // namespace lpq::ops
