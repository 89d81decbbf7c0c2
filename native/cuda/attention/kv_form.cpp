#include "cuda/attention/kv_form.h"

#include <bit>

namespace lpq::cuda {

void require_on_device(const CudaExec& exec, const Tensor& tensor, const char* name) {
  require(tensor.device == exec.device().ordinal, std::string(name) + " is not on the device of the queue");
  // Integers are read one by one.
  const uintptr_t unit = tensor.dtype == DType::i32 ? 4 : 16;
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % unit == 0,
          std::string(name) + " does not start at a multiple of " + std::to_string(unit) + " bytes");
}

namespace {

void require_pages(CudaExec& exec, const Tensor* const (&pages)[4]) {
  const char* const names[4] = {"keys", "keyNumbers", "values", "valueNumbers"};
  for (int i = 0; i < 4; ++i) {
    require_on_device(exec, *pages[i], names[i]);
    require(pages[i]->dim(1) < (int64_t{1} << 31), "a page holds 2 GiB or more");
  }
}
unsigned char* bytes_of(const Tensor* t) { return reinterpret_cast<unsigned char*>(t->raw()); }

// One block of bytes: codes [H][K, V][P][D b / 8], then {scale, zero} [H][K, V][P].
void place_words(KvCache& c, const Tensor* const (&pages)[4]) {
  const int64_t P = c.page_tokens, H = c.heads, D = c.dims, key_row = D * c.bits / 8, value_row = D * c.value_bits / 8,
                codes = H * P * (key_row + value_row), all = codes + H * 8 * P;
  KvDecodeArgs& a = c.places;
  a.keys = bytes_of(pages[0]), a.values = a.keys + P * key_row, a.key_numbers = a.keys + codes,
  a.value_numbers = a.key_numbers + 4 * P;
  a.keys_page = a.values_page = a.key_numbers_page = a.value_numbers_page = all;
  a.key_row = static_cast<int>(key_row), a.value_row = static_cast<int>(value_row),
  a.key_head = a.value_head = static_cast<int>(P * (key_row + value_row));
  a.key_number_head = a.value_number_head = static_cast<int>(8 * P), a.key_number_row = a.value_number_group = 0;
}

void place_tiles(KvCache& c, const Tensor* const (&pages)[4]) {
  const int64_t P = c.page_tokens, H = c.heads, D = c.dims, codes = 16 / c.bits, value_line = 4 * P;
  const bool by_token = c.form == KvForm::kTokens;
  KvDecodeArgs& a = c.places;
  a.keys = bytes_of(pages[0]), a.key_numbers = bytes_of(pages[1]), a.values = bytes_of(pages[2]),
  a.value_numbers = bytes_of(pages[3]);
  a.keys_page = pages[0]->dim(1), a.key_numbers_page = pages[1]->dim(1), a.values_page = pages[2]->dim(1),
  a.value_numbers_page = pages[3]->dim(1);
  const auto place = [&](int64_t lines, int64_t width, int& row, int& head) {
    row = static_cast<int>(width * (c.outer ? 1 : H)), head = static_cast<int>(width * (c.outer ? lines : 1));
  };
  // Lines of scales stand [group of dims][head], or the other way about.
  const auto lines = [&](int64_t group, int& apart, int& head) {
    apart = static_cast<int>(value_line * (c.outer ? 1 : H)),
    head = static_cast<int>(value_line * (c.outer ? D / group : 1));
  };
  place(P / codes, 2 * D, a.key_row, a.key_head);
  place(P, D * c.value_bits / 8, a.value_row, a.value_head);
  if (by_token) lines(c.key_group, a.key_number_row, a.key_number_head);
  else place(P / c.key_group, 4 * D, a.key_number_row, a.key_number_head);
  lines(c.value_group, a.value_number_group, a.value_number_head);
}

}  // namespace

KvCache kv_cache_of(const ops::KvForm& of, CudaExec& exec) {
  require_pages(exec, of.pages);
  const bool words = of.turbomind;
  KvCache c{};
  c.bits = of.bits, c.value_bits = of.value_bits, c.head_dims = of.head_dims, c.dims = of.dims;
  c.heads = of.heads;
  c.key_group = of.key_group, c.value_group = of.value_group, c.page_tokens = of.page_tokens, c.outer = of.outer;
  c.form = words ? KvForm::kWords : !of.channel ? KvForm::kTokens : c.key_group == 128 ? KvForm::kWide : KvForm::kFine;
  c.tile = words ? 64 : of.tile, c.block = words ? 64 : of.block;
  c.pages = of.pages[0]->dim(0);
  if (words) place_words(c, of.pages);
  else place_tiles(c, of.pages);
  KvDecodeArgs& a = c.places;
  a.head_dims = static_cast<int>(c.head_dims), a.page_tokens = static_cast<int>(c.page_tokens),
  a.kv_heads = static_cast<int>(c.heads), a.pages = static_cast<int>(c.pages);
  a.key_group = static_cast<int>(c.key_group), a.value_group = static_cast<int>(c.value_group),
  a.run = static_cast<int>(std::min<int64_t>(128, c.block));
  a.key_bits = static_cast<int>(c.bits), a.value_bits = static_cast<int>(c.value_bits),
  a.by_token = c.form == KvForm::kTokens || words, a.words = words;
  a.page_units = static_cast<int>(c.page_tokens / c.tile * (words ? 1 : 2));
  a.page_shift = std::has_single_bit(static_cast<unsigned>(a.page_units))
                     ? std::countr_zero(static_cast<unsigned>(a.page_units))
                     : -1;
  return c;
}

}  // namespace lpq::cuda
