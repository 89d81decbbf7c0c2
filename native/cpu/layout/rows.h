// Rows of a little-endian bitstream <-> codes of one byte each, for widths of 1 to 8 bits.
#pragma once
#include <cstdint>

namespace lpq::layout {

// out[i] = code first + i of the row, for i < count. Reads nothing beyond row_bytes.
void expand_codes(const uint8_t* row, int64_t row_bytes, int64_t first, int64_t count, int bits, uint8_t* out);

// The inverse, from the start of a byte: writes ceil(count * bits / 8) bytes, the last one's spare bits 0.
void compact_codes(const uint8_t* codes, int64_t count, int bits, uint8_t* out);

}  // namespace lpq::layout
