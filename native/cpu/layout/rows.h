// Rows of a little-endian bitstream <-> codes of one byte each, for widths of 1 to 8 bits.
#pragma once
#include <cstdint>

namespace lpq::layout {

// out[i] = code first + i of the row, for i < count. Reads nothing beyond `readable` bytes from the row's first.
void expand_codes(const uint8_t* row, int64_t readable, int64_t first, int64_t count, int bits, uint8_t* out);

// As many of `count` codes from bit `phase` of `from` on as whole vectors hold: how many. Reads nothing beyond `left`
// bytes.
int64_t expand_codes_avx2(const uint8_t* from, int64_t left, int phase, int64_t count, int bits, uint8_t* out);

// The inverse, from the start of a byte: writes ceil(count * bits / 8) bytes, the last one's spare bits 0.
void compact_codes(const uint8_t* codes, int64_t count, int bits, uint8_t* out);

}  // namespace lpq::layout
