// Little-endian bitstreams: value i of b bits lies at bits i*b .. i*b+b-1.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/verify/wrong.h"

namespace lpq::verify {

inline uint32_t stream_get(const uint8_t* bytes, int64_t i, int bits) {
  const int64_t bit = i * bits;
  const int64_t byte = bit >> 3;
  const int shift = static_cast<int>(bit & 7);
  uint32_t window = bytes[byte];
  if (shift + bits > 8) window |= static_cast<uint32_t>(bytes[byte + 1]) << 8;
  return (window >> shift) & ((1u << bits) - 1);
}

// A row of the packed tensor, `count` values in `words` 32-bit words, into a row of the canonical checkpoint: each
// value exclusive-or `flip`, in ceil(count*bits/8) bytes. Bits behind the last value must be zero.
inline void restream(const uint32_t* words, int64_t words_count, int64_t count, int bits, uint32_t flip, uint8_t* out,
                     int64_t row, Wrong& wrong) {
  const uint32_t mask = (1u << bits) - 1;
  uint64_t in = 0, pending = 0;
  int in_bits = 0, pending_bits = 0;
  int64_t word = 0;
  for (int64_t k = 0; k < count; ++k) {
    if (in_bits < bits) {
      in |= static_cast<uint64_t>(words[word++]) << in_bits;
      in_bits += 32;
    }
    const uint32_t value = (static_cast<uint32_t>(in) & mask) ^ flip;
    in >>= bits;
    in_bits -= bits;
    pending |= static_cast<uint64_t>(value) << pending_bits;
    pending_bits += bits;
    while (pending_bits >= 8) {
      *out++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      pending_bits -= 8;
    }
  }
  if (pending_bits > 0) *out = static_cast<uint8_t>(pending);
  if (in != 0) wrong.see(row, count, static_cast<int64_t>(in), 0);
  for (; word < words_count; ++word)
    if (words[word] != 0) wrong.see(row, count, words[word], 0);
}

// Words that hold `count` values: one dense stream (per_word 0), or `per_word` whole values a word with the top bits
// unused.
inline int64_t words_for(int64_t count, int bits, int64_t per_word) {
  return per_word > 0 ? (count + per_word - 1) / per_word : (count * bits + 31) / 32;
}

// The same row from words of `per_word` whole values each, as a dense stream for restream(). Bits above the last value
// of a word must be zero; those behind the last value of the row restream() sees.
inline void close_gaps(const uint32_t* words, int64_t words_count, int bits, int64_t per_word, uint32_t* dense,
                       int64_t row, Wrong& wrong) {
  const int used = static_cast<int>(per_word) * bits;
  uint64_t pending = 0;
  int pending_bits = 0;
  for (int64_t w = 0; w < words_count; ++w) {
    const uint64_t word = words[w];
    if (word >> used) wrong.see(row, w * per_word, static_cast<int64_t>(word >> used), 0);
    pending |= (word & ((uint64_t{1} << used) - 1)) << pending_bits;
    pending_bits += used;
    if (pending_bits >= 32) {
      *dense++ = static_cast<uint32_t>(pending);
      pending >>= 32;
      pending_bits -= 32;
    }
  }
  if (pending_bits > 0) *dense = static_cast<uint32_t>(pending);
}

// restream() of words of either form; `dense` has room for the words where they have gaps.
inline void unpack_words(const uint32_t* words, int64_t words_count, int64_t count, int bits, int64_t per_word,
                         uint32_t flip, std::vector<uint32_t>& dense, uint8_t* out, int64_t row, Wrong& wrong) {
  if (per_word > 0) {
    close_gaps(words, words_count, bits, per_word, dense.data(), row, wrong);
    words = dense.data(), words_count = ceil_div(words_count * per_word * bits, 32);
  }
  restream(words, words_count, count, bits, flip, out, row, wrong);
}

}  // namespace lpq::verify
