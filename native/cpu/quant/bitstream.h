// Rows of byte codes to and from a little-endian bitstream: element k at bits [k*bits, (k+1)*bits), padding 0.
#pragma once
#include <cstdint>
#include <cstring>

namespace lpq {

inline int64_t stream_bytes(int64_t k, int bits) { return (k * bits + 7) / 8; }

// codes[k] of `bits` bits (higher bits are ignored) -> stream_bytes(k, bits) bytes.
void pack_row(const uint8_t* codes, int64_t k, int bits, uint8_t* stream);
// The inverse.
void unpack_row(const uint8_t* stream, int64_t k, int bits, uint8_t* codes);

}  // namespace lpq
