// One element of a block of GGUF, from the format's definition (formats/gguf/spec.md). Shares nothing with cpu/quant.
#pragma once
#include <cstdint>
#include <string>

#include "cpu/verify/half.h"
#include "lpq/arguments.h"

namespace lpq::verify {

enum class Super { none, q2, q3, q4, q5, q6 };

struct BlockType {
  Super super;            // none: a block of 32
  int size, bytes;        // elements and bytes of a block
  int part;               // elements that share a step
  int low, high;          // what a code may be, its centre taken off
  int steps;              // largest multiple of the block's scale that a step may be; 1: the step is the scale itself
  bool affine;            // a minimum is taken off
  int min, fifth, codes;  // of blocks of 32: where these lie; -1: absent
};

inline BlockType block_type(const std::string& name) {
  if (name == "q4_0") return {Super::none, 32, 18, 32, -8, 7, 1, false, -1, -1, 2};
  if (name == "q4_1") return {Super::none, 32, 20, 32, 0, 15, 1, true, 2, -1, 4};
  if (name == "q5_0") return {Super::none, 32, 22, 32, -16, 15, 1, false, -1, 2, 6};
  if (name == "q5_1") return {Super::none, 32, 24, 32, 0, 31, 1, true, 2, 4, 8};
  if (name == "q8_0") return {Super::none, 32, 34, 32, -128, 127, 1, false, -1, -1, 2};
  if (name == "q2_k") return {Super::q2, 256, 84, 16, 0, 3, 15, true, -1, -1, -1};
  if (name == "q3_k") return {Super::q3, 256, 110, 16, -4, 3, 31, false, -1, -1, -1};
  if (name == "q4_k") return {Super::q4, 256, 144, 32, 0, 15, 63, true, -1, -1, -1};
  if (name == "q5_k") return {Super::q5, 256, 176, 32, 0, 31, 63, true, -1, -1, -1};
  if (name == "q6_k") return {Super::q6, 256, 210, 16, -32, 31, 127, false, -1, -1, -1};
  throw Failure("LPQ_NATIVE_PARAM", "'" + name + "' is no block type of GGUF");
}

inline int half_at(const uint8_t* p) { return p[0] | p[1] << 8; }
inline float value_at(const uint8_t* p) { return half_value(static_cast<uint16_t>(half_at(p))); }

// Of a block of 32: a code as it is stored.
inline int stored_code(const BlockType& t, const uint8_t* b, int e) {
  if (t.bytes == 34) return static_cast<int8_t>(b[2 + e]);
  int q = e < 16 ? b[t.codes + e] & 15 : b[t.codes + e - 16] >> 4;
  if (t.fifth >= 0) q |= (b[t.fifth + e / 8] >> (e % 8) & 1) << 4;
  return q;
}

// The value is step * code - min: the product, then the difference rounded to f32.
struct Element {
  float step, min;
  int code;
};

inline Element element_at(const BlockType& t, const uint8_t* b, int e) {
  const int h = e / 128, j = e % 128 / 32, l = e % 32, s = e / 32;
  switch (t.super) {
    case Super::none:
      return {value_at(b), t.min >= 0 ? -value_at(b + t.min) : 0.0f,
              stored_code(t, b, e) + (t.bytes == 34 ? 0 : t.low)};
    case Super::q2: {
      const int sc = b[e / 16];
      return {value_at(b + 80) * static_cast<float>(sc & 15), value_at(b + 82) * static_cast<float>(sc >> 4),
              b[16 + 32 * h + l] >> (2 * j) & 3};
    }
    case Super::q3: {
      const uint8_t* scales = b + 96;
      const int i = e / 16;
      const int sc = (i < 8 ? scales[i] & 15 : scales[i - 8] >> 4) | (scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
      return {value_at(b + 108) * static_cast<float>(sc - 32), 0.0f,
              (b[32 + 32 * h + l] >> (2 * j) & 3) - (b[l] >> (4 * h + j) & 1 ? 0 : 4)};
    }
    case Super::q4:
    case Super::q5: {
      const uint8_t* p = b + 4;
      const int sc = s < 4 ? p[s] & 63 : (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
      const int mn = s < 4 ? p[s + 4] & 63 : p[s + 4] >> 4 | (p[s] >> 6) << 4;
      const bool five = t.super == Super::q5;
      const uint8_t byte = b[(five ? 48 : 16) + 32 * (e / 64) + l];
      int q = s % 2 ? byte >> 4 : byte & 15;
      if (five) q |= (b[16 + l] >> s & 1) << 4;
      return {value_at(b) * static_cast<float>(sc), value_at(b + 2) * static_cast<float>(mn), q};
    }
    default: {
      const uint8_t byte = b[64 * h + 32 * (j & 1) + l];
      const int q = (j >> 1 ? byte >> 4 : byte & 15) | (b[128 + 32 * h + l] >> (2 * j) & 3) << 4;
      return {value_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + e / 16])), 0.0f, q - 32};
    }
  }
}

// blocks U8 [N, bytes] of `type`, order I32 [N]: stored row r is row order[r].
struct GgufBlocks {
  explicit GgufBlocks(Arguments& a)
      : type(block_type(a.text("type"))),
        blocks(a.input("blocks", {DType::u8}, {-1, -1})),
        rows(blocks.dim(0)),
        order(a.input("order", {DType::i32}, {rows})) {}
  // That they are of k columns, and the order one of N rows.
  void check(int64_t k) const {
    for (int64_t r = 0; r < rows; ++r) require(row(r) >= 0 && row(r) < rows, "the order stays inside N");
    require(k % type.size == 0 && blocks.dim(1) == k / type.size * type.bytes, "blocks is U8 [N, bytes of a row]");
  }
  int64_t row(int64_t r) const { return order.data<int32_t>()[r]; }
  // That of element i of stored row r.
  const uint8_t* block(int64_t r, int64_t i) const {
    return blocks.data<uint8_t>() + r * blocks.dim(1) + i / type.size * type.bytes;
  }

  const BlockType type;
  const Tensor& blocks;
  const int64_t rows;
  const Tensor& order;
};

}  // namespace lpq::verify
