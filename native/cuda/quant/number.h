// How scales, zeros and weights are stored, as a number that kernels switch on.
#pragma once
#include "lpq/tensor.h"

namespace lpq::cuda {

enum NumberType : int { kNumberF32, kNumberF16, kNumberBf16, kNumberE8m0, kNumberE4m3, kNumberU8, kNumberI16 };

// -1 for a dtype that is none of them.
inline int number_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return kNumberF32;
    case DType::f16: return kNumberF16;
    case DType::bf16: return kNumberBf16;
    case DType::f8_e8m0: return kNumberE8m0;
    case DType::f8_e4m3: return kNumberE4m3;
    case DType::u8: return kNumberU8;
    case DType::i16: return kNumberI16;
    default: return -1;
  }
}

// The least scale that a storage type holds precisely (cpu/quant/scale.h).
inline float least_scale(int type) {
  return type == kNumberF16 ? 0x1p-17f : type == kNumberE4m3 ? 0x1p-6f : type == kNumberE8m0 ? 0x1p-127f : 0x1p-126f;
}

}  // namespace lpq::cuda
