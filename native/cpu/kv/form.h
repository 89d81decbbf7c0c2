// Pages of the forms that kernels read (formats/kv/spec.md), in closed formulas: what kv_decode, kv_pack and kv_append
// are told by a few numbers where the other operations are told the modes of a layout (places.h).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "lpq/half.h"
#include "ops/kv.h"

namespace lpq::kv {

// Keys, or values, of a page of P tokens, H heads of D dims.
struct FormSide {
  bool values, turbomind, outer;
  bool channel;  // groups of tokens of a channel; else of dims of a token
  bool fit;      // ends of groups are fitted
  int64_t bits, other_bits, group, tokens, heads, head_dims, dims, run;  // dims: as they are stored
  const Tensor *codes = nullptr, *numbers = nullptr;

  int64_t group_tokens() const { return channel ? group : 1; }
  int64_t group_dims() const { return channel ? 1 : group; }

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

  // Token t of head h of a page, the head's own dims as numbers: code * scale + zero, fused.
  template <class T>
  void row(int64_t page, int64_t t, int64_t h, T* to) const {
    const uint8_t *words = page_of(*codes, page), *pairs = page_of(*numbers, page);
    for (int64_t d = 0; d < head_dims; ++d) {
      const Code c = code(t, h, d);
      const int64_t at = number(t / group_tokens(), h, d / group_dims());
      const T scale = f16_to_f32(get(pairs, at)), zero = f16_to_f32(get(pairs, at + apart()));
      to[d] = std::fma(static_cast<T>(get(words, c.word) >> c.bit & ((1 << bits) - 1)), scale, zero);
    }
  }
};

struct Form {
  FormSide keys, values;
  int64_t heads, head_dims, page_tokens, tile, block;

  explicit Form(const ops::KvForm& f)
      : heads(f.heads), head_dims(f.head_dims), page_tokens(f.page_tokens), tile(f.tile), block(f.block) {
    const int64_t run = std::min<int64_t>(128, block);
    keys = {false,       f.turbomind, f.outer,     f.channel, f.fit, f.bits,     f.value_bits, f.key_group,
            page_tokens, heads,       f.head_dims, f.dims,    run,   f.pages[0], f.pages[1]};
    values = {true,        f.turbomind, f.outer,     false,  f.fit, f.value_bits, f.bits,    f.value_group,
              page_tokens, heads,       f.head_dims, f.dims, run,   f.pages[2],   f.pages[3]};
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
