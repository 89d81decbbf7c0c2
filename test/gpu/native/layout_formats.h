// MARLIN's and TurboMind's bytes, written lane by lane from the fragments of mma.m16n8k16: slow, plain, and sharing
// nothing with native/. Codes are [n_pad][k_pad].
#pragma once
#include <cstdint>
#include <vector>

namespace lpq::test {

// Value v of a lane: of operand B's two fragments side by side (columns 0..7, 8..15 of 16), or of operand A (rows are
// columns of W).
inline int b_column(int lane, int v) { return lane / 4 + 8 * (v / 4); }
inline int b_row(int lane, int v) { return 2 * (lane % 4) + v % 2 + 8 * (v / 2 % 2); }
inline int a_column(int lane, int v) { return lane / 4 + 8 * (v / 2 % 2); }
inline int a_row(int lane, int v) { return 2 * (lane % 4) + v % 2 + 8 * (v / 4); }

// The value that field i of a word of 4-bit or 8-bit codes holds.
inline int value_in_word(int bits, int i) {
  static const int nibbles[8] = {0, 2, 4, 6, 1, 3, 5, 7}, bytes[4] = {0, 2, 1, 3};
  return bits == 4 ? nibbles[i] : bytes[i];
}

enum class Form { marlin, operand_b, experts, operand_a };

inline std::vector<uint32_t> pack_fragments(const std::vector<uint8_t>& codes, int64_t n_pad, int64_t k_pad, int bits,
                                            Form form) {
  std::vector<uint32_t> words(static_cast<size_t>(n_pad * k_pad * bits / 32), 0);
  const int tiles = form == Form::marlin      ? 4
                    : form == Form::operand_a ? 1
                                              : 2;  // 16x16 tiles that a lane stores together
  const int per_tile = bits / 4;                    // words
  const int64_t across = n_pad / (16 * tiles), down = k_pad / 16;
  for (int64_t kt = 0; kt < down; ++kt)
    for (int64_t nt = 0; nt < across; ++nt) {
      const int64_t tile = form == Form::experts ? nt * down + kt : kt * across + nt;
      for (int lane = 0; lane < 32; ++lane)
        for (int w = 0; w < tiles * per_tile; ++w)
          for (int i = 0; i < 32 / bits; ++i) {
            const int v = value_in_word(bits, i) + (bits == 8 ? 4 * (w % 2) : 0);
            const int64_t n =
                (nt * tiles + w / per_tile) * 16 + (form == Form::operand_a ? a_column(lane, v) : b_column(lane, v));
            const int64_t k = kt * 16 + (form == Form::operand_a ? a_row(lane, v) : b_row(lane, v));
            words[static_cast<size_t>((tile * 32 + lane) * tiles * per_tile + w)] |=
                uint32_t{codes[static_cast<size_t>(n * k_pad + k)]} << bits * i;
          }
    }
  return words;
}

// [n_pad][groups] -> [groups][n_pad]: position -> column.
template <class T, class Column>
std::vector<T> order_columns(const std::vector<T>& values, int64_t n_pad, int64_t groups, const Column& column) {
  std::vector<T> out(values.size());
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t p = 0; p < n_pad; ++p)
      out[static_cast<size_t>(g * n_pad + p)] = values[static_cast<size_t>(column(p) * groups + g)];
  return out;
}
inline int64_t marlin_column(int64_t p) { return p / 64 * 64 + p % 64 / 8 + 8 * (p % 8); }
inline int64_t marlin_channel_column(int64_t p) { return p / 32 * 32 + 2 * (p % 32 / 8) + 8 * (p % 8 / 2) + p % 2; }
inline int64_t turbomind_column(int64_t p) { return p / 16 * 16 + p % 16 / 2 + 8 * (p % 2); }

// Zero points: in the order of grouped scales, then as values of words: position 8 a + v of a word's run is field i
// with value v.
inline std::vector<uint32_t> pack_marlin_zeros(const std::vector<uint8_t>& zeros, int64_t n_pad, int64_t groups,
                                               int bits) {
  const std::vector<uint8_t> ordered = order_columns(zeros, n_pad, groups, marlin_column);
  const int fields = 32 / bits;
  std::vector<uint32_t> words(static_cast<size_t>(n_pad * groups / fields), 0);
  for (size_t w = 0; w < words.size(); ++w)
    for (int i = 0; i < fields; ++i)
      words[w] |= uint32_t{ordered[w * static_cast<size_t>(fields) + static_cast<size_t>(value_in_word(bits, i))]}
                  << bits * i;
  return words;
}

}  // namespace lpq::test
