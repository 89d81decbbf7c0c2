// What an operation is told of a packed cache, checked, as the kernels want it.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/launch.h"
#include "ops/kv.h"

namespace lpq::cuda {

struct KvCache {
  int64_t bits, value_bits, dims, heads, key_group, value_group, page_tokens;
  KvForm form;
  int64_t tile, block;    // tokens of a tile of keys; tokens that are packed at once
  bool outer;             // heads outside tokens
  int64_t pages;          // that there are
  KvDecodeArgs places{};  // distances and, of turbomind, where parts of a page begin
  std::string bits_name() const { return bits == value_bits ? std::to_string(bits) : "84"; }
  const char* form_name() const {
    return form == KvForm::kWide ? "wide" : form == KvForm::kFine ? "fine" : form == KvForm::kTokens ? "token" : "word";
  }
};

KvCache kv_cache_of(const ops::KvForm& form, CudaExec& exec);
void require_on_device(const CudaExec& exec, const Tensor& tensor, const char* name);

}  // namespace lpq::cuda
