// Decoders of AWQ's words and of GGUF's blocks, element by element from the formats' definitions. Facts: shared spec
// "checkpoint-formats", sections 2 and 4.
#include <algorithm>

#include "cpu/verify/gguf_element.h"
#include "cpu/verify/wrong.h"

namespace lpq::verify {
namespace {

// packed I32 [R, C/8] -> one nibble a value, transposed: U8 stream [C, ceil(R/2)] when `stream`, else U8 or I16 [C, R].
// Column 8c + j sits in nibble place[j]. value = (nibble ^ flip) - bias.
void decode_awq(Call& call, Exec& exec) {
  static constexpr int kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  Arguments a(call, "verify_decode_awq");
  const Tensor& packed = a.input("packed", {DType::i32}, {-1, -1});
  const int64_t rows = packed.dim(0), words = packed.dim(1);
  const bool stream = a.flag("stream");
  const Tensor& out = a.output("values", {DType::u8, stream ? DType::u8 : DType::i16},
                               {words * 8, stream ? ceil_div(rows * 4, 8) : rows});
  const Tensor& info = report_output(a, "info");
  const auto flip = static_cast<uint32_t>(a.integer("flip", 0));
  const auto bias = static_cast<int32_t>(a.integer("bias", 0));
  a.done();
  const auto* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  report_rows(exec, words * 8, 32, info, [&](int64_t column, Wrong&) {
    uint8_t* line = stream ? out.data<uint8_t>() + column * out.dim(1) : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t value = (in[r * words + column / 8] >> (4 * kPlace[column % 8]) & 15u) ^ flip;
      if (stream) {
        if (r % 2 == 0) line[r / 2] = static_cast<uint8_t>(value);
        else line[r / 2] = static_cast<uint8_t>(line[r / 2] | value << 4);
      } else if (out.dtype == DType::u8) out.data<uint8_t>()[column * rows + r] = static_cast<uint8_t>(value);
      else out.data<int16_t>()[column * rows + r] = static_cast<int16_t>(static_cast<int32_t>(value) - bias);
    }
  });
}
LPQ_OP(decode_awq, "verify_decode_awq");

// blocks U8 [N, bytes], order I32 [N] -> w F32 [N, K]: stored row r is row order[r]. Not-a-number scales are reported.
void gguf_values(Call& call, Exec& exec) {
  Arguments a(call, "verify_gguf_values");
  const GgufBlocks from(a);
  const Tensor& w = a.output("w", {DType::f32}, {from.rows, -1});
  const Tensor& info = report_output(a, "info");
  a.done();
  const int64_t k = w.dim(1);
  from.check(k);
  report_rows(exec, from.rows, 8, info, [&](int64_t r, Wrong& wrong) {
    for (int64_t i = 0; i < k; ++i) {
      const Element element = element_at(from.type, from.block(r, i), static_cast<int>(i % from.type.size));
      const float product = element.step * static_cast<float>(element.code);
      const float value = product - element.min;
      if (!(value - value == 0.0f)) wrong.see(from.row(r), i, 1, 0);
      w.data<float>()[from.row(r) * k + i] = value;
    }
  });
}
LPQ_OP(gguf_values, "verify_gguf_values");

// Blocks of 32 -> codes U8 stream [N, ceil(K*bits/8)], code = ((stored - add) mod 256) ^ flip; scales and minima F16
// [N, K/32] (minima 0 where the type has none).
void gguf_fields(Call& call, Exec& exec) {
  Arguments a(call, "verify_gguf_fields");
  const GgufBlocks from(a);
  const auto& type = from.type;
  const int64_t k = a.integer("k"), bits = a.integer("bits"), n = from.rows, groups = k / 32;
  const auto flip = static_cast<uint32_t>(a.integer("flip", 0)), add = static_cast<uint32_t>(a.integer("add", 0));
  const Tensor& codes = a.output("codes", {DType::u8}, {n, ceil_div(k * bits, 8)});
  const Tensor& scales = a.output("scales", {DType::f16}, {n, groups});
  const Tensor& mins = a.output("minima", {DType::f16}, {n, groups});
  const Tensor& info = report_output(a, "info");
  a.done();
  require(type.size == 32, "no such type of 32-blocks");
  from.check(k);
  const uint32_t mask = (1u << bits) - 1u;
  report_rows(exec, n, 8, info, [&](int64_t r, Wrong& wrong) {
    const int64_t row = from.row(r);
    uint8_t* line = codes.data<uint8_t>() + row * codes.dim(1);
    std::fill_n(line, codes.dim(1), uint8_t{0});
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t stored =
          static_cast<uint32_t>(stored_code(type, from.block(r, i), static_cast<int>(i % 32))) & 0xffu;
      const uint32_t offset = (stored - add) & 0xffu, code = offset ^ flip;
      // A type of more bits than the module's codes can hold codes that the module cannot.
      if (offset > mask) wrong.see(row, i, stored, (mask + add) & 0xffu);
      for (int bit = 0; bit < bits; ++bit)
        if (code >> bit & 1u) {
          const int64_t at = i * bits + bit;
          line[at / 8] = static_cast<uint8_t>(line[at / 8] | 1u << (at % 8));
        }
    }
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* b = from.block(r, 32 * g);
      scales.data<uint16_t>()[row * groups + g] = static_cast<uint16_t>(half_at(b));
      mins.data<uint16_t>()[row * groups + g] = static_cast<uint16_t>(type.min >= 0 ? half_at(b + type.min) : 0);
    }
  });
}
LPQ_OP(gguf_fields, "verify_gguf_fields");

}  // namespace
}  // namespace lpq::verify
