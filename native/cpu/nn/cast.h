// Rows of f32, f16 or bf16 read as f32, and f32 stored as such.
#pragma once
#include <cstring>

#include "cpu/checks.h"
#include "cpu/nn/vector.h"

namespace lpq::nn {

// n elements of `tensor` from element `first` on, as f32 in y. Any alignment.
inline void widen(const Tensor& tensor, int64_t first, int64_t n, float* y) {
  const std::byte* from = tensor.raw() + first * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  if (tensor.dtype == DType::f32) std::memcpy(y, from, static_cast<size_t>(n) * 4);
  else if (tensor.dtype == DType::f16) vector_kernels().widen_f16(reinterpret_cast<const uint16_t*>(from), y, n);
  else vector_kernels().widen_bf16(reinterpret_cast<const uint16_t*>(from), y, n);
}

// n elements of x, rounded to the tensor's dtype, as its elements from `first` on.
inline void narrow(const float* x, const Tensor& tensor, int64_t first, int64_t n) {
  std::byte* to = tensor.raw() + first * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  if (tensor.dtype == DType::f32) std::memcpy(to, x, static_cast<size_t>(n) * 4);
  else if (tensor.dtype == DType::f16) vector_kernels().narrow_f16(x, reinterpret_cast<uint16_t*>(to), n);
  else vector_kernels().narrow_bf16(x, reinterpret_cast<uint16_t*>(to), n);
}

}  // namespace lpq::nn
