// What the operations on a processor and on a device share.
#pragma once
#include <lpq_kernels.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

// torch 2.10 and 2.11 have it under its older name.
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK(call) TORCH_ERROR_CODE_CHECK(call)
#endif

namespace lpq::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] inline void fail(const std::string& sentence) { throw std::runtime_error(sentence); }

inline std::string list(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

inline std::string pair(int64_t n, int64_t k) { return "[" + std::to_string(n) + ", " + std::to_string(k) + "]"; }

inline int kind(ScalarType type, const char* what) {
  if (type == ScalarType::Float) return LPQ_F32;
  if (type == ScalarType::Half) return LPQ_F16;
  if (type == ScalarType::BFloat16) return LPQ_BF16;
  fail(std::string(what) + " is no float32, float16 or bfloat16");
}

/** An uninitialised dense tensor on a device of AOTI's number for its type. */
inline Tensor dense(const std::vector<int64_t>& sizes, ScalarType type, int32_t device_type, int32_t device) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * std::max<int64_t>(1, sizes[i]);
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)), device_type, device, &handle));
  return Tensor(handle);
}

/** `like`'s shape with another last dimension, or with one more. */
inline std::vector<int64_t> shaped(const Tensor& like, int64_t last, bool more = false) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < like.dim(); ++i) sizes.push_back(like.size(i));
  if (more) sizes.push_back(last);
  else sizes.back() = last;
  return sizes;
}

/** Rows of all experts, and where those of each begin: what experts_linear takes of any device. */
inline void require_sorted(const Tensor& x, const Tensor& offsets, int64_t experts) {
  if (x.dim() != 2) fail("x has the shape " + list(x) + ", not [rows of all experts, K]");
  if (offsets.scalar_type() != ScalarType::Int || offsets.dim() != 1 || !offsets.is_contiguous())
    fail("offsets are no dense int32 of one dimension");
  if (offsets.size(0) != experts + 1)
    fail("offsets have the shape " + list(offsets) + ", and " + std::to_string(experts) + " experts have [" +
         std::to_string(experts + 1) + "]");
}

/** Takes the functions of a device from a liblpq_kernels that dlopen gave; the name of one that it has not, or NULL. */
const char* bind_device(void* library);

}  // namespace lpq::torch_ops
