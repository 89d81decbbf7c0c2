// What launchers share: names of instantiations, grid sizes, alignment.
#pragma once
#include <algorithm>
#include <string>

#include "cuda/exec.h"
#include "lpq/checks.h"

namespace lpq::cuda {

inline int64_t div_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// load_any() in types.cuh.
inline int type_index(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::f16 ? 1 : 2; }

// Of an optional tensor, as kernels take it.
inline const void* raw_of(const Tensor* tensor) { return tensor ? tensor->raw() : nullptr; }
inline int type_of(const Tensor* tensor) { return tensor ? type_index(tensor->dtype) : 0; }

inline std::string suffix(const Tensor& tensor) { return std::string("_").append(dtype_name(tensor.dtype)); }

// Blocks for a grid-stride loop: enough to fill the device, never more than the work.
inline int64_t stride_blocks(const CudaExec& exec, int64_t count, int64_t per_block) {
  return std::min<int64_t>(div_up(count, per_block), int64_t{16} * exec.device().multiprocessors);
}

// load4() and store4() may be used on `tensor`.
inline bool fours(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.raw()) % (4 * dtype_bytes(tensor.dtype)) == 0;
}

// Where a copy of sixteen bytes, or TMA, may begin.
inline void require_sixteen(const Tensor& tensor, const char* name) {
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0,
          std::string(name) + " does not start at a multiple of 16 bytes");
}

inline int log2_of(int64_t v) {
  int log = 0;
  while (v > 1) v /= 2, ++log;
  return log;
}

// `count` elements of one dtype to another (nn/elementwise.cpp): what the operation cast does.
void cast_elements(CudaExec& exec, const void* from, DType from_type, void* to, DType to_type, int64_t count);

constexpr std::initializer_list<DType> kActivations = {DType::f32, DType::f16, DType::bf16};

}  // namespace lpq::cuda
