// Pages of the forms that kernels read (formats/kv/spec.md), in closed formulas: what kv_decode, kv_pack and kv_append
// are told by a few numbers where the other operations are told the modes of a layout (places.h).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "lpq/checks.h"
#include "lpq/half.h"

namespace lpq::kv {

// Keys, or values, of a page of P tokens, H heads of D dims.
struct FormSide {
  bool values, turbomind, outer;
  bool channel;  // groups of tokens of a channel; else of dims of a token
  int64_t bits, other_bits, group, tokens, heads, dims, run;
  const Tensor *codes = nullptr, *numbers = nullptr;

  int64_t group_tokens() const { return channel ? group : 1; }
  int64_t group_dims() const { return channel ? 1 : group; }
  int64_t code_bytes() const { return turbomind ? block_bytes() : tokens * heads * dims * bits / 8; }
  int64_t number_bytes() const { return turbomind ? block_bytes() : 4 * tokens * heads * dims / group; }
  int64_t block_bytes() const { return heads * tokens * (dims * (bits + other_bits) / 8 + 8); }

  // The 16-bit word of the code of dim d of head h of token t, and its first bit there.
  struct Code {
    int64_t word;
    int bit;
  };
  Code code(int64_t t, int64_t h, int64_t d) const {
    const int64_t each = 16 / bits;
    if (turbomind) {
      static constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
      const int64_t own = dims * bits, other = dims * other_bits,
                    row = h * tokens * (own + other) + (values ? tokens * other : 0) + t * own;
      const int64_t at = bits == 4 ? d / 8 * 8 + kNibble[d % 8] : d;
      return {row / 16 + at / each, static_cast<int>(at % each * bits)};
    }
    if (!values) {
      const int64_t tile = 32 * each, line = t / tile * 32 + t % 32, lines = tokens / each;
      return {(outer ? h * lines + line : line * heads + h) * dims + d, static_cast<int>(bits * (t % tile / 32))};
    }
    const int64_t chunk = std::min<int64_t>(dims, 128), in_chunk = chunk / each,
                  line = outer ? h * tokens + t : t * heads + h;
    return {line * (dims / each) + d / chunk * in_chunk + d % chunk % in_chunk,
            static_cast<int>(bits * (d % chunk / in_chunk))};
  }
  // The place, in numbers of 16 bits, of the scale of a group, whose zero is apart() further: of channel c, or of dims
  // c of token r.
  int64_t number(int64_t r, int64_t h, int64_t c) const {
    if (turbomind)
      return heads * tokens * dims * (bits + other_bits) / 16 + 2 * ((2 * h + (values ? 1 : 0)) * tokens + r);
    if (channel) {
      const int64_t line = outer ? h * (tokens / group) + r : r * heads + h;
      return 2 * line * dims + c / 2 * 4 + c % 2;
    }
    const int64_t line = outer ? h * (dims / group) + c : c * heads + h;
    return 2 * (line * tokens + r / run * run) + r % run;
  }
  int64_t apart() const { return turbomind ? 1 : channel ? 2 : run; }

  static uint8_t* page_of(const Tensor& pages, int64_t page) {
    return reinterpret_cast<uint8_t*>(pages.raw()) + page * pages.dim(1);
  }
  static uint16_t get(const uint8_t* page, int64_t at) {
    return static_cast<uint16_t>(page[2 * at] | page[2 * at + 1] << 8);
  }
  static void put(uint8_t* page, int64_t at, uint16_t v) {
    page[2 * at] = static_cast<uint8_t>(v), page[2 * at + 1] = static_cast<uint8_t>(v >> 8);
  }
  void put_code(uint8_t* page, int64_t t, int64_t h, int64_t d, uint8_t v) const {
    const Code c = code(t, h, d);
    put(page, c.word, static_cast<uint16_t>((get(page, c.word) & ~(((1 << bits) - 1) << c.bit)) | v << c.bit));
  }

  // Token t of head h of a page, as numbers: code * scale + zero, fused.
  template <class T>
  void row(int64_t page, int64_t t, int64_t h, T* to) const {
    const uint8_t *words = page_of(*codes, page), *pairs = page_of(*numbers, page);
    for (int64_t d = 0; d < dims; ++d) {
      const Code c = code(t, h, d);
      const int64_t at = number(t / group_tokens(), h, d / group_dims());
      const T scale = f16_to_f32(get(pairs, at)), zero = f16_to_f32(get(pairs, at + apart()));
      to[d] = std::fma(static_cast<T>(get(words, c.word) >> c.bit & ((1 << bits) - 1)), scale, zero);
    }
  }
};

struct Form {
  FormSide keys, values;
  int64_t heads, dims, page_tokens;
  int64_t tile, block;  // packed tokens of a sequence are whole tiles; tokens are packed in whole blocks

  // `pages`: keys, their numbers, values, theirs. Throws LPQ_NATIVE_ARGUMENT for a form that no kernel reads, so that
  // no device refuses what another takes.
  Form(const Params& p, const Tensor* const (&pages)[4])
      : heads(p.integer("kvHeads")), dims(p.integer("headDim")), page_tokens(p.integer("pageTokens")) {
    const int64_t bits = p.integer("bits"), value_bits = p.integer("valueBits", bits),
                  key_group = p.integer("keyGroup"), value_group = p.integer("valueGroup");
    const bool outer = p.integer("outer", 0) != 0;
    const std::string form = p.text("form", "bitdecoding"), granularity = p.text("granularity", "channel");
    const bool turbomind = form == "turbomind", channel = !turbomind && granularity == "channel";
    require(turbomind || form == "bitdecoding", "form is '" + form + "', not bitdecoding or turbomind");
    require(granularity == "channel" || granularity == "token",
            "granularity is '" + granularity + "', not channel or token");
    require(bits == 4 || bits == 8 || (bits == 2 && !turbomind),
            turbomind ? "bits is not 4 or 8" : "bits is not 2, 4 or 8");
    require(value_bits == bits || (bits == 8 && value_bits == 4), "valueBits is not bits, nor 4 beside 8");
    require(dims == 64 || dims == 128 || dims == 256, "headDim is not 64, 128 or 256");
    require(heads > 0, "kvHeads is not positive");
    if (turbomind) {
      require(key_group == dims && value_group == dims, "keyGroup and valueGroup of turbomind are headDim");
      require(!outer, "turbomind has one order of heads");
      tile = block = 1;
    } else {
      require(key_group == 32 || key_group == 64 || key_group == 128, "keyGroup is not 32, 64 or 128");
      require(value_group == std::min(key_group, dims), "valueGroup is not that of keyGroup");
      require(channel || key_group == value_group, "keyGroup does not divide headDim");
      tile = 32 * (16 / bits), block = std::max({tile, 32 * (16 / value_bits), channel ? key_group : 0});
    }
    const int64_t whole = turbomind ? 64 : block;
    require(page_tokens > 0 && page_tokens % whole == 0, "pageTokens is no multiple of " + std::to_string(whole));
    const int64_t run = std::min<int64_t>(128, block);
    keys = {false,       turbomind, outer, channel, bits,     value_bits, key_group,
            page_tokens, heads,     dims,  run,     pages[0], pages[1]};
    values = {true,        turbomind, outer, false, value_bits, bits,    value_group,
              page_tokens, heads,     dims,  run,   pages[2],   pages[3]};
    const char* const names[4] = {"keys", "keyNumbers", "values", "valueNumbers"};
    const int64_t bytes[4] = {keys.code_bytes(), keys.number_bytes(), values.code_bytes(), values.number_bytes()};
    for (int i = 0; i < 4; ++i) {
      require_tensor(*pages[i], names[i], DType::u8, {pages[0]->dim(0), bytes[i]});
      require(!turbomind || pages[i]->raw() == pages[0]->raw(), "turbomind has one block a page");
    }
  }
  int64_t pages() const { return keys.codes->dim(0); }
  void require_page(int32_t page) const {
    require(page >= 0 && page < pages(), "the table names page " + std::to_string(page) + ", which is none");
  }
  // That packed tokens first .. first + count of a sequence have pages.
  void require_pages(const int32_t* table, int64_t table_pages, int64_t first, int64_t count) const {
    require(first >= 0 && first + count <= table_pages * page_tokens, "the table has too few pages");
    if (count > 0)
      for (int64_t i = first / page_tokens; i * page_tokens < first + count; ++i) require_page(table[i]);
  }
};

}  // namespace lpq::kv
