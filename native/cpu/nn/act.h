// The vectorised activation of an operation's.
#pragma once
#include <cmath>

#include "cpu/nn/vector.h"
#include "ops/elementwise.h"

namespace lpq::nn {

// gelu, x times the normal distribution function of x, has none: f64 and libm's erfc will do.
inline Act act_of(ops::Act act) {
  switch (act) {
    case ops::Act::gelu_tanh: return Act::gelu_tanh;
    case ops::Act::relu: return Act::relu;
    case ops::Act::relu2: return Act::relu2;
    case ops::Act::quick_gelu: return Act::quick_gelu;
    case ops::Act::sigmoid: return Act::sigmoid;
    default: return Act::silu;
  }
}

inline float gelu(float x) {
  return static_cast<float>(0.5 * x * std::erfc(-static_cast<double>(x) * 0.70710678118654752));
}

}  // namespace lpq::nn
