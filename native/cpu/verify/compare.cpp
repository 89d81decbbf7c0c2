// Two tensors of equal rows of bytes, element by element.
#include <cstring>

#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// Elements of `bits` bits (at most 32) at bit i*bits of a row of bytes; the first difference and their number go to
// info I64 [5] as raw bit patterns. `rows` and the byte length say how long a row is.
void compare(Call& call, Exec& exec) {
  Arguments args(call, "verify_compare");
  const Tensor &a = args.input("a"), &b = args.input("b"), &info = report_output(args, "info");
  const int64_t rows = args.integer("rows"), bits = args.integer("bits");
  args.done();
  require(a.bytes() == b.bytes() && rows > 0 && a.bytes() % static_cast<size_t>(rows) == 0,
          "two tensors of equal rows");
  require(bits >= 1 && bits <= 64, "elements of 1 to 64 bits");
  const int64_t row_bytes = static_cast<int64_t>(a.bytes()) / rows, per_row = ceil_div(row_bytes * 8, bits);
  const auto* left = reinterpret_cast<const uint8_t*>(a.raw());
  const auto* right = reinterpret_cast<const uint8_t*>(b.raw());
  const auto element = [&](const uint8_t* row, int64_t i) {
    uint64_t value = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const int64_t at = i * bits + bit;
      if (at < row_bytes * 8 && (row[at >> 3] >> (at & 7) & 1)) value |= uint64_t{1} << bit;
    }
    return static_cast<int64_t>(value);
  };
  report_rows(exec, rows, 16, info, [&](int64_t row, Wrong& wrong) {
    const uint8_t *x = left + row * row_bytes, *y = right + row * row_bytes;
    if (std::memcmp(x, y, static_cast<size_t>(row_bytes)) == 0) return;
    for (int64_t i = 0; i < per_row; ++i) {
      const int64_t got = element(x, i), expected = element(y, i);
      if (got != expected) wrong.see(row, i, got, expected);
    }
  });
}
LPQ_OP(compare, "verify_compare");

}  // namespace
}  // namespace lpq::verify
