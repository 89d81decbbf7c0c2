// Decoders of AWQ's words and of GGUF's blocks, element by element from the formats' definitions. Facts: shared spec
// "checkpoint-formats", sections 2 and 4.
#include <vector>

#include "cpu/verify/gguf_element.h"
#include "cpu/verify/wrong.h"
#include "lpq/exec.h"

namespace lpq::verify {
namespace {

int64_t ceil_bytes(int64_t bits) { return (bits + 7) / 8; }

// packed I32 [R, C/8] -> one nibble a value, transposed: U8 stream [C, ceil(R/2)] when `stream`, else U8 or I16 [C, R].
// Column 8c + j sits in nibble place[j]. value = (nibble ^ flip) - bias.
void decode_awq(Call& call, Exec& exec) {
  static constexpr int kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const Tensor &packed = call.input(0), &out = call.output(0);
  const bool stream = call.params.integer("stream", 0) != 0;
  const auto flip = static_cast<uint32_t>(call.params.integer("flip", 0));
  const auto bias = static_cast<int32_t>(call.params.integer("bias", 0));
  const int64_t rows = packed.dim(0), words = packed.dim(1), columns = out.dim(0);
  require(packed.rank() == 2 && out.rank() == 2 && columns == words * 8, "packed is I32 [R, C/8]");
  require(out.dim(1) == (stream ? ceil_bytes(rows * 4) : rows), "the output holds R values a column");
  const auto* in = reinterpret_cast<const uint32_t*>(packed.data<int32_t>());
  WrongReport report;
  exec.pool.parallel_for(words, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c)
      for (int j = 0; j < 8; ++j) {
        const int64_t column = 8 * c + j;
        uint8_t* line = stream ? out.data<uint8_t>() + column * out.dim(1) : nullptr;
        for (int64_t r = 0; r < rows; ++r) {
          const uint32_t value = (in[r * words + c] >> (4 * kPlace[j]) & 15u) ^ flip;
          if (stream) {
            if (r % 2 == 0) line[r / 2] = static_cast<uint8_t>(value);
            else line[r / 2] = static_cast<uint8_t>(line[r / 2] | value << 4);
          } else if (out.dtype == DType::u8) out.data<uint8_t>()[column * rows + r] = static_cast<uint8_t>(value);
          else out.data<int16_t>()[column * rows + r] = static_cast<int16_t>(static_cast<int32_t>(value) - bias);
        }
      }
  });
  report.write(call.output(1));
}
LPQ_OP(decode_awq, "verify_decode_awq");

// blocks U8 [N, bytes], order I32 [N] -> w F32 [N, K]: stored row r is row order[r]. Not-a-number scales are reported.
void gguf_values(Call& call, Exec& exec) {
  const Tensor &blocks = call.input(0), &w = call.output(0);
  const int64_t n = w.dim(0), k = w.dim(1);
  const BlockType type = block_type(call.params.text("type"));
  require(k % type.size == 0 && blocks.dim(0) == n && blocks.dim(1) == k / type.size * type.bytes,
          "blocks is U8 [N, bytes of a row]");
  const int32_t* rows = checked_order(call.input(1), n);
  const auto* in = blocks.data<uint8_t>();
  auto* out = w.data<float>();
  WrongReport report;
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    Wrong wrong;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t* b = in + r * blocks.dim(1) + i / type.size * type.bytes;
        const Element element = element_at(type, b, static_cast<int>(i % type.size));
        const float product = element.step * static_cast<float>(element.code);
        const float value = product - element.min;
        if (!(value - value == 0.0f)) wrong.see(rows[r], i, 1, 0);
        out[rows[r] * k + i] = value;
      }
    report.merge(wrong);
  });
  report.write(call.output(1));
}
LPQ_OP(gguf_values, "verify_gguf_values");

// Blocks of 32 -> codes U8 stream [N, ceil(K*bits/8)], code = ((stored - add) mod 256) ^ flip; scales and minima F16
// [N, K/32] (minima 0 where the type has none).
void gguf_fields(Call& call, Exec& exec) {
  const BlockType type = block_type(call.params.text("type"));
  const int bits = static_cast<int>(call.params.integer("bits"));
  const auto flip = static_cast<uint32_t>(call.params.integer("flip", 0));
  const auto add = static_cast<uint32_t>(call.params.integer("add", 0));
  const int64_t k = call.params.integer("k");
  const Tensor &blocks = call.input(0), &codes = call.output(0), &scales = call.output(1), &mins = call.output(2);
  require(type.size == 32, "no such type of 32-blocks");
  const int64_t n = codes.dim(0), groups = k / 32;
  require(k % 32 == 0 && blocks.dim(0) == n && blocks.dim(1) == groups * type.bytes,
          "blocks is U8 [N, bytes of a row]");
  require(codes.dim(1) == ceil_bytes(k * bits), "codes is U8 [N, ceil(K*bits/8)]");
  require(scales.elements() == n * groups && mins.elements() == n * groups, "scales and minima are F16 [N, K/32]");
  const int32_t* rows = checked_order(call.input(1), n);
  const auto* in = blocks.data<uint8_t>();
  const uint32_t mask = (1u << bits) - 1u;
  WrongReport report;
  exec.pool.parallel_for(n, 8, [&](int64_t begin, int64_t end, int) {
    Wrong wrong;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = rows[r];
      uint8_t* line = codes.data<uint8_t>() + row * codes.dim(1);
      for (int64_t i = 0; i < codes.dim(1); ++i) line[i] = 0;
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t* b = in + r * blocks.dim(1) + i / 32 * type.bytes;
        const uint32_t stored = static_cast<uint32_t>(stored_code(type, b, static_cast<int>(i % 32))) & 0xffu;
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
        const uint8_t* b = in + r * blocks.dim(1) + g * type.bytes;
        const int min = type.min >= 0 ? half_at(b + type.min) : 0;
        scales.data<uint16_t>()[row * groups + g] = static_cast<uint16_t>(half_at(b));
        mins.data<uint16_t>()[row * groups + g] = static_cast<uint16_t>(min);
      }
    }
    report.merge(wrong);
  });
  report.write(call.output(3));
}
LPQ_OP(gguf_fields, "verify_gguf_fields");

}  // namespace
}  // namespace lpq::verify
