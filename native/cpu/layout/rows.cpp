#include "cpu/layout/rows.h"

#include <algorithm>
#include <cstring>

namespace lpq::layout {
namespace {

uint64_t load(const uint8_t* from, int64_t bytes) {
  uint64_t x = 0;
  std::memcpy(&x, from, static_cast<size_t>(std::min<int64_t>(bytes, 8)));
  return x;
}

// Eight codes in the low 8 * bits bits of x -> one a byte.
template <int bits>
uint64_t spread(uint64_t x) {
  if constexpr (bits == 8) return x;
  if constexpr (bits == 4) {
    x &= 0xffffffff;
    x = (x | x << 16) & 0x0000ffff0000ffff;
    x = (x | x << 8) & 0x00ff00ff00ff00ff;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
  }
  uint64_t y = 0;
  for (int i = 0; i < 8; ++i) y |= (x >> (i * bits) & ((1u << bits) - 1)) << (8 * i);
  return y;
}

template <int bits>
uint64_t gather(uint64_t x) {
  if constexpr (bits == 8) return x;
  uint64_t y = 0;
  for (int i = 0; i < 8; ++i) y |= (x >> (8 * i) & ((1u << bits) - 1)) << (i * bits);
  return y;
}

template <int bits>
void expand(const uint8_t* row, int64_t row_bytes, int64_t first, int64_t count, uint8_t* out) {
  int64_t i = 0;
  // Eight codes are exactly `bits` bytes, so their phase within a byte never changes; and with at most 7 bits a code,
  // 8 codes and a phase of up to 7 bits fit 64 bits (8-bit codes have phase 0).
  const int64_t start = first * bits;
  const int phase = static_cast<int>(start % 8);
  const uint8_t* from = row + start / 8;
  int64_t left = row_bytes - start / 8;
  for (; i + 8 <= count; i += 8, from += bits, left -= bits) {
    uint64_t x = left >= 8 ? load(from, 8) : load(from, left);
    x >>= phase;
    const uint64_t y = spread<bits>(x);
    std::memcpy(out + i, &y, 8);
  }
  if (i < count) {
    const uint64_t y = spread<bits>(load(from, left) >> phase);
    std::memcpy(out + i, &y, static_cast<size_t>(count - i));
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

void expand_codes(const uint8_t* row, int64_t row_bytes, int64_t first, int64_t count, int bits, uint8_t* out) {
  switch (bits) {
    case 1: return expand<1>(row, row_bytes, first, count, out);
    case 2: return expand<2>(row, row_bytes, first, count, out);
    case 3: return expand<3>(row, row_bytes, first, count, out);
    case 4: return expand<4>(row, row_bytes, first, count, out);
    case 5: return expand<5>(row, row_bytes, first, count, out);
    case 6: return expand<6>(row, row_bytes, first, count, out);
    case 7: return expand<7>(row, row_bytes, first, count, out);
    default: return expand<8>(row, row_bytes, first, count, out);
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
