#include "cpu/layout/rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/isa.h"

namespace lpq::layout {
namespace {

uint64_t load(const uint8_t* from, int64_t bytes) {
  uint64_t x = 0;
  std::memcpy(&x, from, static_cast<size_t>(std::min<int64_t>(bytes, 8)));
  return x;
}

// The low `bits` bits of every `step` bits.
constexpr uint64_t every(int step, int bits) {
  uint64_t mask = 0;
  for (int at = 0; at < 64; at += step) mask |= ((uint64_t{1} << bits) - 1) << at;
  return mask;
}

// The eight bits of a byte, one a byte: for 1-bit codes a table is several times as fast as arithmetic.
constexpr std::array<uint64_t, 256> spread_bits() {
  std::array<uint64_t, 256> table{};
  for (uint64_t byte = 0; byte < 256; ++byte)
    for (int bit = 0; bit < 8; ++bit) table[byte] |= (byte >> bit & 1) << (8 * bit);
  return table;
}
constexpr auto kSpreadBits = spread_bits();

// Eight codes in the low 8 * bits bits of x -> one a byte: halves move apart, then their halves, then theirs.
template <int bits>
uint64_t spread(uint64_t x) {
  if constexpr (bits == 8) {
    return x;
  } else if constexpr (bits == 1) {
    return kSpreadBits[x & 255];
  } else {
    x = (x & every(64, 4 * bits)) | (x & every(64, 4 * bits) << (4 * bits)) << (32 - 4 * bits);
    x = (x & every(32, 2 * bits)) | (x & every(32, 2 * bits) << (2 * bits)) << (16 - 2 * bits);
    return (x & every(16, bits)) | (x & every(16, bits) << bits) << (8 - bits);
  }
}

// The inverse, of bytes below 2^bits.
template <int bits>
uint64_t gather(uint64_t x) {
  if constexpr (bits == 8) {
    return x;
  } else {
    x = (x & every(16, bits)) | (x >> (8 - bits) & every(16, bits) << bits);
    x = (x & every(32, 2 * bits)) | (x >> (16 - 2 * bits) & every(32, 2 * bits) << (2 * bits));
    return (x & every(64, 4 * bits)) | (x >> (32 - 4 * bits) & every(64, 4 * bits) << (4 * bits));
  }
}

template <int bits>
void expand(const uint8_t* row, int64_t readable, int64_t first, int64_t count, uint8_t* out) {
  int64_t i = 0;
  // Eight codes are exactly `bits` bytes, so their phase within a byte never changes; and with at most 7 bits a code,
  // 8 codes and a phase of up to 7 bits fit 64 bits (8-bit codes have phase 0).
  const int64_t start = first * bits;
  const int phase = static_cast<int>(start % 8);
  const uint8_t* from = row + start / 8;
  int64_t left = readable - start / 8;
#ifdef LPQ_X86
  if (bits < 8 && count >= 32 && active_isa() != Isa::generic) {
    i = expand_codes_avx2(from, left, phase, count, bits, out);
    from += i / 8 * bits;
    left -= i / 8 * bits;
  }
#endif
  for (; i + 8 <= count && left >= 8; i += 8, from += bits, left -= bits) {
    const uint64_t y = spread<bits>(load(from, 8) >> phase);
    std::memcpy(out + i, &y, 8);
  }
  for (; i < count; i += 8, from += bits, left -= bits) {
    const uint64_t y = spread<bits>(load(from, left) >> phase);
    std::memcpy(out + i, &y, static_cast<size_t>(std::min<int64_t>(8, count - i)));
  }
}

template <int bits>
void compact(const uint8_t* codes, int64_t count, uint8_t* out) {
  for (; count >= 8; count -= 8, codes += 8, out += bits) {
    const uint64_t y = gather<bits>(load(codes, 8));
    std::memcpy(out, &y, bits);
  }
  if (count > 0) {
    const uint64_t y = gather<bits>(load(codes, count));
    std::memcpy(out, &y, static_cast<size_t>((count * bits + 7) / 8));
  }
}

}  // namespace

void expand_codes(const uint8_t* row, int64_t readable, int64_t first, int64_t count, int bits, uint8_t* out) {
  switch (bits) {
    case 1: return expand<1>(row, readable, first, count, out);
    case 2: return expand<2>(row, readable, first, count, out);
    case 3: return expand<3>(row, readable, first, count, out);
    case 4: return expand<4>(row, readable, first, count, out);
    case 5: return expand<5>(row, readable, first, count, out);
    case 6: return expand<6>(row, readable, first, count, out);
    case 7: return expand<7>(row, readable, first, count, out);
    default: return expand<8>(row, readable, first, count, out);
  }
}

void compact_codes(const uint8_t* codes, int64_t count, int bits, uint8_t* out) {
  switch (bits) {
    case 1: return compact<1>(codes, count, out);
    case 2: return compact<2>(codes, count, out);
    case 3: return compact<3>(codes, count, out);
    case 4: return compact<4>(codes, count, out);
    case 5: return compact<5>(codes, count, out);
    case 6: return compact<6>(codes, count, out);
    case 7: return compact<7>(codes, count, out);
    default: return compact<8>(codes, count, out);
  }
}

}  // namespace lpq::layout
