// The packed cache of keys and values, read by formulas of its own (docs/kv-cache.md).
#include <algorithm>

#include "lpq/arguments.h"

namespace lpq::verify {
namespace {

struct Form {
  bool turbomind, outer, values, channel;
  int64_t heads, dim, page, bits, other_bits, group, run;
};

uint32_t field(const uint8_t* bytes, int64_t bit, int64_t bits) {
  uint32_t value = 0;
  for (int64_t i = 0; i < bits; ++i) value |= static_cast<uint32_t>(bytes[(bit + i) >> 3] >> ((bit + i) & 7) & 1) << i;
  return value;
}

// The first bit of the code of dim d of head h of token t of a page.
int64_t code_bit(const Form& f, int64_t t, int64_t h, int64_t d) {
  if (f.turbomind) {
    static constexpr int64_t nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int64_t keys = f.dim * (f.values ? f.other_bits : f.bits),
                  values = f.dim * (f.values ? f.bits : f.other_bits);
    const int64_t row = h * f.page * (keys + values) + (f.values ? f.page * keys + t * values : t * keys);
    return row + (f.bits == 4 ? d / 8 * 32 + 4 * nibble[d % 8] : d * f.bits);
  }
  const int64_t codes = 16 / f.bits;  // of a word
  if (f.values) {
    const int64_t words = f.dim / codes, chunk = std::min<int64_t>(f.dim, 128), in_chunk = chunk / codes;
    const int64_t row = f.outer ? h * f.page + t : t * f.heads + h;
    return 16 * (row * words + d / chunk * in_chunk + d % chunk % in_chunk) + f.bits * (d % chunk / in_chunk);
  }
  const int64_t block = 32 * codes, line = t / block * 32 + t % 32, lines = f.page / codes;
  const int64_t row = f.outer ? h * lines + line : line * f.heads + h;
  return 16 * (row * f.dim + d) + f.bits * (t % block / 32);
}

// The first bit of the scale, or zero, of a group: counted in tokens by channel, else in dims.
int64_t number_bit(const Form& f, int64_t row, int64_t h, int64_t column, bool zero) {
  if (f.turbomind) {
    const int64_t data = f.heads * f.page * f.dim * (f.bits + f.other_bits);
    return data + 32 * ((2 * h + (f.values ? 1 : 0)) * f.page + row) + (zero ? 16 : 0);
  }
  if (f.channel) {
    const int64_t line = f.outer ? h * (f.page / f.group) + row : row * f.heads + h;
    return 32 * line * f.dim + column / 2 * 64 + column % 2 * 16 + (zero ? 32 : 0);
  }
  const int64_t groups = f.dim / f.group, line = f.outer ? h * groups + column : column * f.heads + h;
  return 32 * line * f.page + 32 * (row / f.run) * f.run + 16 * (row % f.run) + (zero ? 16 * f.run : 0);
}

// Inputs: pages U8 of codes, of numbers (may be the same), table I32. Outputs: codes U8 [T, heads*dim], scales and
// zeros f16 [T / group or T, ...].
void decode(Call& call, Exec& exec) {
  Arguments a(call, "verify_kv_decode");
  const Tensor& codes = a.input("pages", {DType::u8}, {-1, -1});
  const Tensor& numbers = a.input("numbers", {DType::u8}, {-1, -1});
  const Tensor& table = a.input("table", {DType::i32}, {-1});
  const Form f{a.text("form") == "turbomind",
               a.flag("outer"),
               a.flag("values"),
               a.flag("channel"),
               a.integer("heads"),
               a.integer("headDim"),
               a.integer("pageTokens"),
               a.integer("bits"),
               a.integer("otherBits"),
               a.integer("group"),
               a.integer("run")};
  for (const int64_t size : {f.heads, f.dim, f.page, f.group, f.run})
    require(size > 0 && size <= 1 << 20, "a size of the cache is not between 1 and 2^20");
  for (const int64_t bits : {f.bits, f.other_bits})
    require(bits == 2 || bits == 4 || bits == 8, "codes have not 2, 4 or 8 bits");
  require(f.dim % f.group == 0 || f.channel, "groups do not divide a head");
  const int64_t width = f.heads * f.dim, columns = f.channel ? width : width / f.group;
  const Tensor& code = a.output("codes", {DType::u8}, {-1, width});
  const int64_t tokens = code.dim(0);
  const Tensor& scale = a.output("scales", {DType::f16}, {f.channel ? tokens / f.group : tokens, columns});
  const Tensor& zero = a.output("zeros", {DType::f16}, scale.shape);
  a.done();
  require(tokens <= table.dim(0) * f.page, "the table has too few pages");
  const auto page_of = [&](const Tensor& pages, int64_t t) {
    const int64_t page = table.data<int32_t>()[t / f.page];
    require(page >= 0 && page < pages.dim(0), "the table names a page that is none");
    return reinterpret_cast<const uint8_t*>(pages.raw()) + page * pages.dim(1);
  };
  const auto read = [&](const Tensor& pages, int64_t t, int64_t bit, int64_t bits) {
    require(bit >= 0 && bit + bits <= 8 * pages.dim(1), "a page is smaller than its form");
    return field(page_of(pages, t), bit, bits);
  };
  exec.pool.for_each(tokens, 16, [&](int64_t t) {
    for (int64_t c = 0; c < width; ++c)
      code.data<uint8_t>()[t * width + c] =
          static_cast<uint8_t>(read(codes, t, code_bit(f, t % f.page, c / f.dim, c % f.dim), f.bits));
  });
  const int64_t step = f.channel ? f.group : 1, of_head = columns / f.heads;
  for (int64_t r = 0; r < scale.dim(0); ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t row = r * step % f.page / step;
      scale.data<uint16_t>()[r * columns + c] =
          static_cast<uint16_t>(read(numbers, r * step, number_bit(f, row, c / of_head, c % of_head, false), 16));
      zero.data<uint16_t>()[r * columns + c] =
          static_cast<uint16_t>(read(numbers, r * step, number_bit(f, row, c / of_head, c % of_head, true), 16));
    }
}
LPQ_OP(decode, "verify_kv_decode");

}  // namespace
}  // namespace lpq::verify
