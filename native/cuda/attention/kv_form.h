// What an operation is told of a packed cache, checked, as the kernels want it.
#pragma once
#include "cuda/attention/kv_shape.h"
#include "cuda/launch.h"
#include "ops/kv.h"

namespace lpq::cuda {

struct KvCache {
  int64_t bits, value_bits, head_dims, dims, heads, key_group, value_group, page_tokens;
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

// of.template operator()<KEYS, VALUES, DIMS, FORM>() for the cache's bits, dims and form.
template <int KEYS, int VALUES, int DIMS, class F>
auto kv_of_bits_and_dims(KvForm form, F of) {
  if constexpr (KEYS > 2)
    if (form == KvForm::kWords) return of.template operator()<KEYS, VALUES, DIMS, KvForm::kWords>();
  return form == KvForm::kWide   ? of.template operator()<KEYS, VALUES, DIMS, KvForm::kWide>()
         : form == KvForm::kFine ? of.template operator()<KEYS, VALUES, DIMS, KvForm::kFine>()
                                 : of.template operator()<KEYS, VALUES, DIMS, KvForm::kTokens>();
}
template <int KEYS, int VALUES, class F>
auto kv_of_bits(const KvCache& c, F of) {
  return c.dims == 64    ? kv_of_bits_and_dims<KEYS, VALUES, 64>(c.form, of)
         : c.dims == 128 ? kv_of_bits_and_dims<KEYS, VALUES, 128>(c.form, of)
         : c.dims == 256 ? kv_of_bits_and_dims<KEYS, VALUES, 256>(c.form, of)
                         : kv_of_bits_and_dims<KEYS, VALUES, 512>(c.form, of);
}
template <class F>
auto kv_of(const KvCache& c, F of) {
  if (c.value_bits != c.bits) return kv_of_bits<8, 4>(c, of);
  return c.bits == 2 ? kv_of_bits<2, 2>(c, of) : c.bits == 4 ? kv_of_bits<4, 4>(c, of) : kv_of_bits<8, 8>(c, of);
}

}  // namespace lpq::cuda
