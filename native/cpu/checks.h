// The checks of lpq/checks.h, which every backend shares.
#pragma once
#include "lpq/checks.h"

namespace lpq {

// Activations on the CPU.
inline void require_f32(std::initializer_list<std::pair<const Tensor*, const char*>> tensors) {
  for (const auto& [tensor, name] : tensors) require_dtype(*tensor, name, {DType::f32});
}

}  // namespace lpq
