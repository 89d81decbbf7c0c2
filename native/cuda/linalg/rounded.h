// f32 operands of products in bf16.
#pragma once
#include <optional>

#include "cuda/launch.h"

namespace lpq::cuda {

// A matrix as a product reads it: itself, or in another dtype in scratch of its own.
class Operand {
 public:
  Operand(CudaExec& exec, const Tensor& matrix, DType dtype) : data_(matrix.raw()) {
    if (matrix.dtype == dtype) return;
    room_.emplace(exec.scratch(static_cast<size_t>(matrix.elements()) * dtype_bytes(dtype)));
    cast_elements(exec, matrix.raw(), matrix.dtype, room_->as<void>(), dtype, matrix.elements());
    data_ = room_->as<void>();
  }
  const void* data() const { return data_; }

 private:
  std::optional<Scratch> room_;
  const void* data_;
};

}  // namespace lpq::cuda
