// What operations ask of their tensors. Each throws Failure("LPQ_NATIVE_ARGUMENT") with a sentence that names the
// tensor.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>

#include "lpq/exec.h"

namespace lpq {

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) text.append(text.size() > 1 ? "," : "").append(std::to_string(dim));
  return text + "]";
}

inline void require_dtype(const Tensor& tensor, const char* name, std::initializer_list<DType> accepted) {
  for (DType dtype : accepted)
    if (tensor.dtype == dtype) return;
  std::string wanted;
  for (DType dtype : accepted) wanted += (wanted.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  throw Failure("LPQ_NATIVE_ARGUMENT",
                std::string(name) + " is " + std::string(dtype_name(tensor.dtype)) + ", not " + wanted);
}

// A dimension of -1 takes any size.
inline void require_shape(const Tensor& tensor, const char* name, const std::vector<int64_t>& shape) {
  bool ok = tensor.rank() == shape.size();
  for (size_t i = 0; ok && i < shape.size(); ++i) ok = shape[i] < 0 || tensor.shape[i] == shape[i];
  if (!ok)
    throw Failure("LPQ_NATIVE_ARGUMENT",
                  std::string(name) + " has the shape " + shape_text(tensor.shape) + ", not " + shape_text(shape));
}

inline void require_tensor(const Tensor& tensor, const char* name, DType dtype, const std::vector<int64_t>& shape) {
  require_dtype(tensor, name, {dtype});
  require_shape(tensor, name, shape);
}

// Columns of a matrix that a row's neighbours in memory surround.
struct Columns {
  int64_t first, pitch;
};

// Elements must be reachable as their C++ type; a tensor of a mapped file may start at any byte.
inline bool aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.raw()) % dtype_bytes(tensor.dtype) == 0;
}

inline void require_aligned(const Tensor& tensor, const char* name) {
  require(aligned(tensor), std::string(name) + " does not start at a multiple of its element's size");
}

// Rows a chunk of parallel work should hold when one row costs about `cost` simple steps.
inline int64_t rows_grain(int64_t cost) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(cost, 1)); }

}  // namespace lpq
