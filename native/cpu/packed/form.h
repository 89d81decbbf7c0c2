// Packed weights as the CPU's product reads them: one block of memory, made once from a layout's bytes or from plain
// codes.
//
// Outputs stand in panels of 32, and four panels make a band (the last may have fewer); columns stand in chunks of 32.
// A chunk of b-bit codes is b rows of 32 words, a word for each output of the panel: code i of an output is bits
// [i b, i b + b) of its b words, the lowest first. So one load gives neighbouring outputs the same column, and all of a
// panel's outputs share an element of x. A band's rows follow each other as kernels read them, as one stream, which is
// what processors fetch best: the first row of each of its panels, the second of each, and on to its last chunk.
// Scales and shifts are f32, 32 a group and panel, in the same order. W = table[code] * scale + shift. Codes of signed
// integers have their highest bit flipped, so that a code is its value plus a constant.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels/elements.h"
#include "lpq/exec.h"

namespace lpq::packed {

constexpr int64_t kPanel = 32, kChunk = 32, kBand = 4;

// The head of the block. Offsets are bytes from its start; 0: not there.
struct Form {
  char magic[8];
  int32_t bits;
  int32_t whole;    // codes are integers: table[code] = code - constant, and kernels convert them
  int32_t flipped;  // with which codes of signed integers are exclusive-ored
  float constant;
  int64_t n, k, k_padded, group_size, groups;  // group_size 0: one scale a row
  int64_t table, scales, shifts, permutation, bias, words, bytes;

  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t chunks() const { return k_padded / kChunk; }
  // Panels in the band of this one.
  int64_t width(int64_t panel) const { return std::min(kBand, panels() - panel / kBand * kBand); }
  // Where row `word` of a panel's words begins, of chunks() * bits, and its scales (or shifts) of a group.
  int64_t words_at(int64_t panel, int64_t word) const { return row_at(panel, word, chunks() * bits); }
  int64_t side_at(int64_t panel, int64_t group) const { return row_at(panel, group, groups); }

 private:
  int64_t row_at(int64_t panel, int64_t row, int64_t rows) const {
    const int64_t band = panel / kBand * kBand;
    return (band * rows + row * width(panel) + panel - band) * kPanel;
  }
};

// What a block of such weights has, without its contents.
Form form_of(const QuantType& type, int64_t n, int64_t k, int64_t group_size, float constant, bool shifts,
             bool permutation, bool bias);

// The head of `memory`. Throws Failure("LPQ_NATIVE_ARGUMENT") unless it is one, and whole.
const Form& opened(const void* memory, size_t bytes);

// Fills `memory` of form.bytes bytes, at a multiple of 64. `bias` f32 [N], or null. Each element of `elements` is read
// once.
void pack(const Form& form, const Elements& elements, const float* bias, void* memory, ThreadPool& pool);

// Where column i of a chunk lies in its word, kernels of integers may read it in place: as code * 2^place, against x *
// 2^-place. Both are exact (but for |x| below 2^-95), and so the sum is that of code and x.
inline int place_of(int bits, int64_t i) {
  const int at = static_cast<int>(i % kChunk) * bits % 32;
  return at + bits < 32 ? at : 0;  // a code that ends a word, or goes on in the next one, is moved down
}

// y [m, N] = x [m, K] W^T + bias. x and y are `dtype`: f32, f16 or bf16. Sums are f32 in an order that depends on
// neither threads nor instruction set: a chain of fma over a group's columns from 0; over groups ascending, total =
// fma(scale, chain, total), then total = fma(shift, sum of x over the group, total) where there are shifts; then the
// bias: the block's, or `bias` [N] where it has none.
void multiply(const Form& form, int64_t m, DType dtype, const void* x, void* y, ThreadPool& pool,
              const float* bias = nullptr);

// y [count, K] = W[rows[i], :], each weight fma(table[code], scale, shift) in f32.
void rows(const Form& form, int64_t count, const int64_t* rows, DType dtype, void* y, ThreadPool& pool);

}  // namespace lpq::packed
