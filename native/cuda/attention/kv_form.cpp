#include "cuda/attention/kv_form.h"

#include <bit>
#include <numeric>

namespace lpq::cuda {

void require_on_device(const CudaExec& exec, const Tensor& tensor, const char* name) {
  require(tensor.device == exec.device().ordinal, std::string(name) + " is not on the device of the queue");
  // Integers are read one by one.
  const uintptr_t unit = tensor.dtype == DType::i32 ? 4 : 16;
  require(reinterpret_cast<uintptr_t>(tensor.raw()) % unit == 0,
          std::string(name) + " does not start at a multiple of " + std::to_string(unit) + " bytes");
}

namespace {

// Tensors of a page: how many bytes each must have.
void require_pages(CudaExec& exec, const Tensor* const (&pages)[4], const int64_t (&bytes)[4]) {
  const char* const names[4] = {"keys", "keyNumbers", "values", "valueNumbers"};
  for (int i = 0; i < 4; ++i) {
    require_tensor(*pages[i], names[i], DType::u8, {pages[0]->dim(0), bytes[i]});
    require_on_device(exec, *pages[i], names[i]);
    require(bytes[i] < (int64_t{1} << 31), "a page holds 2 GiB or more");
  }
}
unsigned char* bytes_of(const Tensor* t) { return reinterpret_cast<unsigned char*>(t->raw()); }

// One block of bytes: codes [H][K, V][P][D b / 8], then {scale, zero} [H][K, V][P].
void place_words(KvCache& c, CudaExec& exec, const Tensor* const (&pages)[4]) {
  const int64_t P = c.page_tokens, H = c.heads, D = c.dims, key_row = D * c.bits / 8, value_row = D * c.value_bits / 8,
                codes = H * P * (key_row + value_row), all = codes + H * 8 * P;
  require_pages(exec, pages, {all, all, all, all});
  for (int i = 1; i < 4; ++i)
    require(pages[i]->raw() == pages[0]->raw(), "turbomind has one tensor for keys, values and numbers");
  KvDecodeArgs& a = c.places;
  a.keys = bytes_of(pages[0]), a.values = a.keys + P * key_row, a.key_numbers = a.keys + codes,
  a.value_numbers = a.key_numbers + 4 * P;
  a.keys_page = a.values_page = a.key_numbers_page = a.value_numbers_page = all;
  a.key_row = static_cast<int>(key_row), a.value_row = static_cast<int>(value_row),
  a.key_head = a.value_head = static_cast<int>(P * (key_row + value_row));
  a.key_number_head = a.value_number_head = static_cast<int>(8 * P), a.key_number_row = a.value_number_group = 0;
}

void place_tiles(KvCache& c, CudaExec& exec, const Tensor* const (&pages)[4]) {
  const int64_t P = c.page_tokens, H = c.heads, D = c.dims, codes = 16 / c.bits, value_line = 4 * P;
  const bool by_token = c.form == KvForm::kTokens;
  require_pages(exec, pages,
                {P * H * D * c.bits / 8, by_token ? D / c.key_group * H * value_line : P / c.key_group * H * D * 4,
                 P * H * D * c.value_bits / 8, D / c.value_group * H * value_line});
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

KvCache kv_cache_of(const Params& p, CudaExec& exec, const Tensor* const (&pages)[4]) {
  KvCache c{};
  c.bits = p.integer("bits"), c.value_bits = p.integer("valueBits", c.bits), c.dims = p.integer("headDim"),
  c.heads = p.integer("kvHeads");
  c.key_group = p.integer("keyGroup"), c.value_group = p.integer("valueGroup"), c.page_tokens = p.integer("pageTokens"),
  c.outer = p.integer("outer", 0) != 0;
  const std::string form = p.text("form", "bitdecoding"), granularity = p.text("granularity", "channel");
  require(form == "bitdecoding" || form == "turbomind", "form is " + form + ", not bitdecoding or turbomind");
  require(granularity == "channel" || granularity == "token",
          "granularity is " + granularity + ", not channel or token");
  const bool words = form == "turbomind", by_token = granularity == "token";
  require(c.bits == 2 || c.bits == 4 || c.bits == 8, "bits is not 2, 4 or 8");
  require(c.value_bits == c.bits || (c.bits == 8 && c.value_bits == 4), "valueBits is not bits, nor 4 with keys of 8");
  require(c.dims == 64 || c.dims == 128 || c.dims == 256, "headDim is not 64, 128 or 256");
  require(c.heads > 0, "kvHeads is not positive");
  if (words) {
    require(c.bits != 2, "turbomind has 4 and 8 bits");
    require(c.key_group == c.dims && c.value_group == c.dims,
            "turbomind has one scale a token and head: keyGroup and valueGroup are headDim");
    c.form = KvForm::kWords, c.tile = c.block = 64;
    require(!c.outer, "turbomind has heads outside tokens as it is");
  } else {
    require(c.key_group == 32 || c.key_group == 64 || c.key_group == 128, "keyGroup is not 32, 64 or 128");
    require(c.value_group == std::min(c.key_group, c.dims), "valueGroup is not min(keyGroup, headDim)");
    require(!by_token || c.key_group <= c.dims, "keyGroup is more than headDim");
    c.form = by_token ? KvForm::kTokens : c.key_group == 128 ? KvForm::kWide : KvForm::kFine;
    c.tile = 512 / c.bits,
    c.block = std::lcm(std::max<int64_t>(c.tile, by_token ? 1 : c.key_group), 512 / c.value_bits);
  }
  require(c.page_tokens > 0 && c.page_tokens % c.block == 0, "pageTokens is no multiple of " + std::to_string(c.block));
  c.pages = pages[0]->rank() == 2 ? pages[0]->dim(0) : 0;
  if (words) place_words(c, exec, pages);
  else place_tiles(c, exec, pages);
  KvDecodeArgs& a = c.places;
  a.page_tokens = static_cast<int>(c.page_tokens), a.kv_heads = static_cast<int>(c.heads),
  a.pages = static_cast<int>(c.pages);
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
